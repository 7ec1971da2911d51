//! Reads the items of a batch: the lines of a file or of standard input, all of them before anything is submitted.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _};
use std::os::unix::ffi::OsStringExt as _;

use bgd_shared::limits::BATCH_TASKS;

use crate::failure::Failure;

/// Maximum number of items.
pub const ITEMS: usize = BATCH_TASKS;

/// Maximum length of an item, in bytes.
pub const ITEM_BYTES: usize = 1024 * 1024;

/// The separator of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Separator {
    /// A newline, or a carriage return and a newline. Empty lines are skipped.
    Newline,
    /// A NUL, as written by `find -print0`. Empty items count.
    Nul,
}

/// An error in the items. The numbers are those of the items, counted from 1.
#[derive(Debug)]
enum ItemError {
    TooMany,
    TooLong(usize),
    Nul(usize),
    Io(io::Error),
}

/// Reads all items of a file; `-` is standard input.
///
/// # Errors
/// The file can't be read; there are no items, or too many; or one is too long or contains a NUL.
pub fn read(file: &OsStr, end: Separator) -> Result<Vec<OsString>, Failure> {
    if file.is_empty() {
        return Err(Failure::usage("--each is empty"));
    }
    let (name, items) = if file == "-" {
        let input = io::stdin();
        if input.is_terminal() {
            return Err(Failure::usage("--each - reads items from standard input, which is a terminal here")
                .hint("give it a pipe or a file: `COMMAND | bgctl submit --each - -- CMD {}`"));
        }
        ("standard input".to_owned(), all(&mut input.lock(), end))
    } else {
        let name = file.to_string_lossy().into_owned();
        let opened = File::open(file).map_err(|error| Failure::usage(format!("--each {name}: {error}")))?;
        (name, all(&mut BufReader::with_capacity(1 << 16, opened), end))
    };
    let what = match items {
        Ok(items) if items.is_empty() => "there are no items",
        Ok(items) => return Ok(items),
        Err(ItemError::Io(error)) => return Err(Failure::usage(format!("--each {name}: {error}"))),
        Err(ItemError::TooMany) => "more than 1000000 items, the limit of a batch",
        Err(ItemError::TooLong(number)) => {
            return Err(Failure::usage(format!("--each {name}: item {number} is larger than 1 MiB"))
                .hint("items are lines, or with -0 NUL-terminated; nothing was submitted"));
        }
        Err(ItemError::Nul(number)) => {
            return Err(Failure::usage(format!(
                "--each {name}: item {number} contains a NUL byte, which no argument can contain"
            ))
            .hint("if the items are NUL-terminated, add -0; nothing was submitted"));
        }
    };
    Err(Failure::usage(format!("--each {name}: {what}; nothing was submitted")))
}

fn all(input: &mut impl BufRead, end: Separator) -> Result<Vec<OsString>, ItemError> {
    let mut items = Vec::new();
    let mut item = Vec::new();
    let sign = if end == Separator::Nul { 0 } else { b'\n' };
    loop {
        // The longest item, one excess byte, and the terminator.
        let most = ITEM_BYTES as u64 + 2;
        let count = io::Read::take(&mut *input, most).read_until(sign, &mut item).map_err(ItemError::Io)?;
        if count == 0 {
            return Ok(items);
        }
        if item.last() == Some(&sign) {
            item.pop();
        }
        if end == Separator::Newline && item.last() == Some(&b'\r') {
            item.pop();
        }
        let number = items.len() + 1;
        if item.len() > ITEM_BYTES {
            return Err(ItemError::TooLong(number));
        }
        if item.contains(&0) {
            return Err(ItemError::Nul(number));
        }
        if item.is_empty() && end == Separator::Newline {
            continue;
        }
        if items.len() == ITEMS {
            return Err(ItemError::TooMany);
        }
        items.push(OsString::from_vec(std::mem::take(&mut item)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], end: Separator) -> Result<Vec<String>, ItemError> {
        let items = all(&mut BufReader::with_capacity(7, text), end)?;
        Ok(items.into_iter().map(|item| item.into_string().unwrap()).collect())
    }

    #[test]
    fn r112_items_are_split_by_newline_or_nul() {
        assert_eq!(lines(b"a b\n\nc\r\n 'd'", Separator::Newline).unwrap(), ["a b", "c", " 'd'"]);
        assert_eq!(lines(b"a\nb\0\0c\0", Separator::Nul).unwrap(), ["a\nb", "", "c"]);
        assert!(
            lines(b"", Separator::Newline).unwrap().is_empty()
                && lines(b"\n\n", Separator::Newline).unwrap().is_empty()
        );
        assert!(matches!(lines(b"a\nb\0c\n", Separator::Newline), Err(ItemError::Nul(2))));
    }

    #[test]
    fn r112_item_size_and_count_are_limited() {
        let longest = [vec![b'x'; ITEM_BYTES], b"\ny\n".to_vec()].concat();
        assert_eq!(lines(&longest, Separator::Newline).unwrap().len(), 2);
        let longer = [b"y\n".to_vec(), vec![b'x'; ITEM_BYTES + 1], b"\n".to_vec()].concat();
        assert!(matches!(lines(&longer, Separator::Newline), Err(ItemError::TooLong(2))));
        let much = vec![b'x'; 10 * ITEM_BYTES];
        assert!(matches!(lines(&much, Separator::Newline), Err(ItemError::TooLong(1))));
        let most = b"x\n".repeat(ITEMS);
        assert_eq!(lines(&most, Separator::Newline).unwrap().len(), ITEMS);
        assert!(matches!(
            lines(&[most, b"x".to_vec()].concat(), Separator::Newline),
            Err(ItemError::TooMany)
        ));
    }

    #[test]
    fn r112_unreadable_or_empty_item_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        std::fs::write(&empty, "\n").unwrap();
        let failure = read(empty.as_ref(), Separator::Newline).unwrap_err();
        assert!(failure.message.ends_with("empty: there are no items; nothing was submitted"), "{failure}");
        let missing = read(folder.path().join("missing").as_ref(), Separator::Newline).unwrap_err();
        assert!(missing.message.contains("missing: No such file"), "{missing}");
        assert!(read(folder.path().as_ref(), Separator::Newline).unwrap_err().message.contains("directory"));
    }
}
