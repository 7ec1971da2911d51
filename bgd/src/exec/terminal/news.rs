//! The notifications to viewers of a terminal, as lines.

use bgd_shared::encoding::Encoding;
use bgd_shared::id::TaskId;
use bgd_shared::request::{OutputNews, StoppedNews};
use serde::Serialize;

/// Encodes an `output` notification.
pub fn output(id: TaskId, offset: u64, bytes: Vec<u8>, redraw: bool, restore: Option<String>) -> Vec<u8> {
    let room = bytes.len() + bytes.len() / 8 + 256;
    let (data, encoding) = Encoding::encode(bytes);
    line("output", room, &OutputNews { id, offset, data, encoding, redraw, restore })
}

/// Encodes a `stopped` notification.
pub fn stopped(id: TaskId) -> Vec<u8> {
    line("stopped", 128, &StoppedNews { id })
}

fn line(method: &str, room: usize, params: &impl Serialize) -> Vec<u8> {
    let mut line = Vec::with_capacity(room);
    line.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":\"");
    line.extend_from_slice(method.as_bytes());
    line.extend_from_slice(b"\",\"params\":");
    // These types have string keys only, so this can't fail; every reader skips an empty line.
    if serde_json::to_writer(&mut line, params).is_err() {
        return b"\n".to_vec();
    }
    line.extend_from_slice(b"}\n");
    line
}

/// Returns how many of the bytes can be sent at once: all but an incomplete UTF-8 character at the end.
pub fn whole_characters(bytes: &[u8]) -> usize {
    let end = bytes.len();
    for back in 1..=end.min(3) {
        let lead = bytes[end - back];
        if lead & 0xc0 != 0x80 {
            let is_cut =
                std::str::from_utf8(&bytes[end - back..]).is_err_and(|error| error.error_len().is_none());
            return if is_cut { end - back } else { end };
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_cut_anywhere_stays_valid_utf8(text: String, cuts in prop::collection::vec(1_usize..9, 1..50)) {
            let (mut sent, mut held) = (String::new(), Vec::new());
            let mut rest = text.as_bytes();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (part, tail) = rest.split_at(rest.len().min(*cut));
                held.extend_from_slice(part);
                let whole = whole_characters(&held);
                sent.push_str(std::str::from_utf8(&held[..whole]).expect("whole characters"));
                held.drain(..whole);
                rest = tail;
            }
            prop_assert_eq!(sent, text);
        }

        #[test]
        fn at_most_3_bytes_are_held_back(bytes: Vec<u8>) {
            prop_assert!(bytes.len() - whole_characters(&bytes) <= 3);
        }
    }

    #[test]
    fn output_line_omits_unset_fields() {
        let id = TaskId::random();
        let line = output(id, 7, b"\x1b[1mx\r\n".to_vec(), false, None);
        let expected = format!(
            r#"{{"jsonrpc":"2.0","method":"output","params":{{"id":"{id}","offset":7,"data":"\u001b[1mx\r\n","encoding":"utf-8"}}}}"#
        );
        assert_eq!(String::from_utf8(line).unwrap(), format!("{expected}\n"));
        let line = output(id, 0, vec![0xff], true, Some("r".to_owned()));
        let line = String::from_utf8(line).unwrap();
        assert!(line.contains(r#""data":"/w==","encoding":"base64","redraw":true,"restore":"r""#), "{line}");
    }
}
