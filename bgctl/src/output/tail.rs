//! Finds the last lines of an output without reading all of it.

use std::ops::Range;

/// Bytes read at once, backwards from the end.
const BLOCK: u64 = 64 * 1024;

/// Returns the offset at which the last `lines` lines begin, given the stored parts of an output. An unfinished line
/// counts as a line, but not the rest of one at the beginning of a later part, which is not shown. `read` returns the
/// bytes of a range of at most 64 KiB; fewer bytes mean that the output ends there.
///
/// # Errors
/// The error of `read`.
pub fn start_of_last_lines<E>(
    lines: u64,
    parts: &[Range<u64>],
    mut read: impl FnMut(Range<u64>) -> Result<Vec<u8>, E>,
) -> Result<u64, E> {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(0) };
    if lines == 0 {
        return Ok(last.end);
    }
    let mut left = lines;
    for part in parts.iter().rev() {
        let mut place = part.end;
        while place > part.start {
            let from = part.start.max(place.saturating_sub(BLOCK));
            let bytes = read(from..place)?;
            for newline in memchr::memrchr_iter(b'\n', &bytes) {
                let behind = from + newline as u64 + 1;
                // The final newline of a part ends its last line and does not start another.
                if behind == part.end {
                    continue;
                }
                left -= 1;
                if left == 0 {
                    return Ok(behind);
                }
            }
            place = from;
        }
    }
    Ok(first.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn start(lines: u64, text: &[u8]) -> u64 {
        let all = 0..text.len() as u64;
        start_of_last_lines(lines, &[all], |range| {
            Ok::<_, ()>(
                text[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()].to_vec(),
            )
        })
        .unwrap()
    }

    #[test]
    fn final_newline_starts_no_new_line() {
        assert_eq!(start(1, b"a\nb\nc\n"), 4);
        assert_eq!(start(1, b"a\nb\nc"), 4);
        assert_eq!(start(2, b"a\nb\nc\n"), 2);
        assert_eq!(start(9, b"a\nb\nc\n"), 0);
        assert_eq!(start(0, b"a\nb\n"), 4);
        assert_eq!(start(1, b""), 0);
        assert_eq!(start(1, b"\n\n"), 1);
    }

    #[test]
    fn only_the_last_block_is_read() {
        let end = 1 << 30;
        let mut reads = Vec::new();
        let found = start_of_last_lines(3, &[0..65_536, 1 << 20..end], |range| {
            reads.push(range.clone());
            Ok::<_, ()>(b"0123456789abcde\n".repeat(usize::try_from((range.end - range.start) / 16).unwrap()))
        });
        assert_eq!(found.unwrap(), end - 48);
        assert_eq!(reads.len(), 1);
        assert_eq!(reads[0], end - BLOCK..end);
    }

    #[test]
    fn holes_are_skipped_when_searching_lines() {
        let parts = [0..10, 1_000_000..1_000_010];
        let mut reads = Vec::new();
        let found = start_of_last_lines(1, &parts, |range| {
            reads.push(range.clone());
            Ok::<_, ()>(if range.start == 0 { b"12345\n789a".to_vec() } else { b"bcdefghij\n".to_vec() })
        });
        assert_eq!(found.unwrap(), 6);
        assert_eq!(reads, [1_000_000..1_000_010, 0..10]);
    }

    #[test]
    fn line_that_a_hole_has_cut_does_not_count() {
        let parts = [0..10, 1_000_000..1_000_006];
        let found = |lines| {
            start_of_last_lines(lines, &parts, |range| {
                Ok::<_, ()>(if range.start == 0 { b"12345\n789\n".to_vec() } else { b"cut\nb\n".to_vec() })
            })
        };
        assert_eq!([1, 2, 3].map(|lines| found(lines).unwrap()), [1_000_004, 6, 0]);
    }

    proptest! {
        #[test]
        fn result_equals_that_of_a_full_read(text in "[ab\n]{0,60}", lines in 1u64..8) {
            let found = usize::try_from(start(lines, text.as_bytes())).unwrap();
            let all: Vec<&str> = text.split_inclusive('\n').collect();
            let wanted = all.len().saturating_sub(usize::try_from(lines).unwrap());
            prop_assert_eq!(&text[found..], all[wanted..].concat());
        }
    }
}
