//! Limits of the short texts that options take. The daemon checks them, too, but names the field of the request.

use bgd_shared::limits::LABEL_BYTES;

use crate::failure::Failure;

/// Checks that the texts of an option are not longer than the daemon accepts.
///
/// # Errors
/// One of them is longer: a usage error that names the option.
pub fn check<'a>(option: &str, texts: impl IntoIterator<Item = &'a String>) -> Result<(), Failure> {
    match texts.into_iter().map(String::len).find(|bytes| *bytes > LABEL_BYTES) {
        None => Ok(()),
        Some(bytes) => {
            Err(Failure::usage(format!("{option} has {bytes} bytes; at most {LABEL_BYTES} are allowed")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlong_label_is_refused_naming_its_option() {
        let [longest, longer] = [LABEL_BYTES, LABEL_BYTES + 1].map(|bytes| "x".repeat(bytes));
        assert_eq!(check("--description", None), Ok(()));
        assert_eq!(check("--tag", [&longest, &longest]), Ok(()));
        let failure = check("--tag", [&longest, &longer]).unwrap_err();
        assert_eq!(failure.message, "--tag has 4097 bytes; at most 4096 are allowed");
        assert_eq!(failure.code, crate::exit::Code::USAGE);
    }
}
