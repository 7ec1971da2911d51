//! Which input passes the scanner and which is a press, regardless of how the input is split.

use proptest::prelude::*;

use crate::foreground::{HELD_BYTES, Key, KeyScanner, Piece};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pass,
    Pressed,
    Released,
}
use Kind::{Pass, Pressed, Released};

/// Pieces with adjacent passing ones merged, as their boundaries do not matter.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pieces(Vec<(Kind, Vec<u8>)>);

impl Pieces {
    fn add(&mut self, kind: Kind, bytes: &[u8]) {
        match self.0.last_mut() {
            Some((Pass, last)) if kind == Pass => last.extend_from_slice(bytes),
            _ if kind == Pass && bytes.is_empty() => {}
            _ => self.0.push((kind, bytes.to_vec())),
        }
    }

    fn scan(&mut self, scanner: &mut KeyScanner, mut typed: &[u8]) {
        while let Some(piece) = scanner.scan(&mut typed) {
            match piece {
                Piece::Pass(bytes) => self.add(Pass, bytes),
                Piece::Pressed(bytes) => self.add(Pressed, bytes),
                Piece::Released(bytes) => self.add(Released, bytes),
            }
        }
        assert!(typed.is_empty());
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|(_, bytes)| bytes).copied().collect()
    }
}

/// Returns all pieces of an input that arrives in these parts and then ends.
fn scanned<'a>(key: &str, parts: impl IntoIterator<Item = &'a [u8]>) -> Pieces {
    let mut scanner = KeyScanner::new(key.parse().unwrap());
    let mut pieces = Pieces::default();
    for part in parts {
        pieces.scan(&mut scanner, part);
    }
    pieces.add(Pass, scanner.flush());
    pieces
}

/// Asserts that this input is one piece of this kind for this key.
#[track_caller]
fn is(kind: Kind, key: &str, input: &str) {
    assert_eq!(scanned(key, [input.as_bytes()]).0, [(kind, input.as_bytes().to_vec())], "{key}: {input:?}");
}

/// Forms of Ctrl-B.
const PRESSES: &[&str] = &[
    "\x02",
    "\x1b[98;5u",
    "\x1b[98;5:1u",
    "\x1b[98;69u",
    "\x1b[98;133:1u",
    "\x1b[98;197u",
    "\x1b[98:66;5u",
    "\x1b[98::98;5u",
    "\x1b[98:66:98;5:1u",
    "\x1b[1080::98;5u",
    "\x1b[27;5;98~",
    "\x1b[27;5;66~",
];

/// Sequences that follow a press while Ctrl-B is held down and released.
const RELEASES: &[&str] = &["\x1b[98;5:3u", "\x1b[98;5:2u", "\x1b[98;69:3u", "\x1b[1080:1048:98;5:3u"];

/// Complete sequences other than Ctrl-B.
const OTHERS: &[&str] = &[
    "\x1b[A",
    "\x1b[1;5B",
    "\x1bOP",
    "\x1bx",
    "\x1b\x1b[A",
    // Alt-Ctrl-B.
    "\x1b\x02",
    "\x1b[98;7u",
    // Other modifiers, events and keys.
    "\x1b[98u",
    "\x1b[98;u",
    "\x1b[98;1u",
    "\x1b[98;2u",
    "\x1b[98;6u",
    "\x1b[98;13u",
    "\x1b[98;0u",
    "\x1b[98;5:4u",
    "\x1b[97;5u",
    "\x1b[97:98;5u",
    "\x1b[66;6u",
    "\x1b[27;6;66~",
    "\x1b[27;5;99~",
    "\x1b[27;5;98;1~",
    "\x1b[28;5;98~",
    "\x1b[3;5~",
    "\x1b[98;5~",
    "\x1b[98;5A",
    // A Latin layout with another key at the position of B.
    "\x1b[120::98;5u",
    // Numbers that overflow into a match if parsed carelessly.
    "\x1b[354;5u",
    "\x1b[4294967394;5u",
    "\x1b[98;4294967301u",
    // Mouse, focus, and a reply of the terminal.
    "\x1b[<0;98;5M",
    "\x1b[I",
    "\x1b]11;rgb:0/0/0\x1b\\",
    "\x1b[201~",
    // Longer than any examined sequence.
    "\x1b[98;5:000000000000000000000000000000000000000000000000001u",
];

fn one_of(list: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(list).prop_map(str::to_owned)
}

/// Text without the key, but with the characters of its forms.
fn text() -> impl Strategy<Value = String> {
    "[a-z0-9;:\\[~uü€\r\t]{0,12}"
}

fn paste() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        text(),
        one_of(PRESSES),
        one_of(RELEASES),
        one_of(OTHERS),
        Just("\x1b[200~".to_owned()),
        Just("\x1b[20".to_owned()),
        Just("\x1b".to_owned()),
    ];
    // Terminals remove the end sequence from pasted text. Two parts may also form one.
    let pasted = prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat().replace("\x1b[201~", ""));
    let pasted = pasted.prop_filter("the end", |text| !text.contains("\x1b[201~"));
    pasted.prop_map(|text| format!("\x1b[200~{text}\x1b[201~"))
}

/// Input, with the kind of each part.
fn typing() -> impl Strategy<Value = Vec<(Kind, String)>> {
    let part = prop_oneof![
        4 => text().prop_map(|text| (Pass, text)),
        2 => one_of(OTHERS).prop_map(|text| (Pass, text)),
        2 => one_of(PRESSES).prop_map(|text| (Pressed, text)),
        1 => one_of(RELEASES).prop_map(|text| (Released, text)),
        1 => paste().prop_map(|text| (Pass, text)),
    ];
    prop::collection::vec(part, 0..20)
}

/// Random input of the bytes that matter.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(b"\x1b\x1b\x1b[[[98;5u:2017~\x02x".as_slice()), 0..120)
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..12)
}

fn cut<'a>(input: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
    places.sort_unstable();
    let ends = places.iter().copied().chain([input.len()]);
    let starts = [0].into_iter().chain(places.iter().copied());
    starts.zip(ends).map(|(start, end)| &input[start..end]).collect()
}

proptest! {
    #[test]
    fn presses_are_found_and_the_rest_passes_in_any_chunks(parts in typing(), cuts in cuts()) {
        let mut expected = Pieces::default();
        for (kind, text) in &parts {
            expected.add(*kind, text.as_bytes());
        }
        let input = expected.bytes();
        prop_assert_eq!(&scanned("ctrl-b", cut(&input, &cuts)), &expected);
        prop_assert_eq!(&scanned("ctrl-b", input.chunks(1)), &expected);
    }

    #[test]
    fn scanning_is_independent_of_chunking(input in noise(), cuts in cuts()) {
        let whole = scanned("ctrl-b", [&input[..]]);
        prop_assert_eq!(whole.bytes(), &input[..]);
        prop_assert_eq!(&scanned("ctrl-b", cut(&input, &cuts)), &whole);
        prop_assert_eq!(&scanned("ctrl-b", input.chunks(1)), &whole);
    }

    #[test]
    fn flushing_held_bytes_loses_nothing(input in noise(), cuts in cuts()) {
        let mut scanner = KeyScanner::new(Key::default());
        let mut pieces = Pieces::default();
        for part in cut(&input, &cuts) {
            pieces.scan(&mut scanner, part);
            let held = scanner.flush().to_vec();
            prop_assert!(held.len() < HELD_BYTES && !scanner.is_holding());
            pieces.add(Pass, &held);
        }
        prop_assert_eq!(pieces.bytes(), input);
    }

    #[test]
    fn input_without_the_key_passes_at_once(input: Vec<u8>) {
        let input: Vec<u8> = input.into_iter().filter(|byte| !matches!(byte, 0x02 | 0x1b)).collect();
        let mut scanner = KeyScanner::new(Key::default());
        let mut typed = &input[..];
        let first = scanner.scan(&mut typed);
        prop_assert_eq!(first, (!input.is_empty()).then_some(Piece::Pass(&input)));
        prop_assert!(!scanner.is_holding());
    }

    #[test]
    fn all_input_passes_at_once_if_no_key_is_set(input in noise()) {
        let mut scanner = KeyScanner::new(Key::NONE);
        let mut typed = &input[..];
        let first = scanner.scan(&mut typed);
        prop_assert_eq!(first, (!input.is_empty()).then_some(Piece::Pass(&input)));
        prop_assert!(!scanner.is_holding());
    }
}

#[test]
fn every_encoding_of_the_key_and_no_other_is_recognized() {
    for (kind, forms) in [(Pressed, PRESSES), (Released, RELEASES), (Pass, OTHERS)] {
        for form in forms {
            is(kind, "ctrl-b", form);
        }
    }
}

#[test]
fn punctuation_and_space_keys_are_recognized() {
    for form in ["\0", "\x1b[32;5u", "\x1b[64;5u", "\x1b[50:64;6u", "\x1b[27;6;64~"] {
        is(Pressed, "ctrl-space", form);
    }
    for form in ["\x1e", "\x1b[94;5u", "\x1b[54:94;6u", "\x1b[27;6;94~"] {
        is(Pressed, "ctrl-^", form);
    }
    for form in ["\x1b[54;6u", "\x1b[54:94;5u", "\x1b[126;5u", "\x1b[94;7u"] {
        is(Pass, "ctrl-^", form);
    }
    for form in ["\x1d", "\x1b[93;5u", "\x1b[1098::93;5u"] {
        is(Pressed, "ctrl-]", form);
    }
    is(Pass, "ctrl-]", "\x02\x1b[98;5u");
}

#[test]
fn lone_escape_is_held_until_flushed() {
    let mut scanner = KeyScanner::new(Key::default());
    let mut pieces = Pieces::default();
    pieces.scan(&mut scanner, b"i\x1b");
    assert!(scanner.is_holding());
    assert_eq!(pieces.bytes(), b"i");
    assert_eq!(scanner.flush(), b"\x1b");
    assert!(!scanner.is_holding());
    assert_eq!(scanner.flush(), b"");

    // The hold is over: this is not Alt-Ctrl-B, and the held Escape no longer begins a form of the key.
    assert_eq!(scanner.scan(&mut &b"\x02"[..]), Some(Piece::Pressed(b"\x02")));
    assert_eq!(scanner.scan(&mut &b"[98;5u"[..]), Some(Piece::Pass(b"[98;5u")));
}

#[test]
fn paste_in_pieces_holds_nothing_and_still_ends() {
    let mut scanner = KeyScanner::new(Key::default());
    let mut pieces = Pieces::default();
    for part in ["\x1b[200~ab\x02\x1b[20", "1", "~", "\x02"] {
        pieces.scan(&mut scanner, part.as_bytes());
        assert_eq!(scanner.flush(), b"");
    }
    assert_eq!(pieces.0, [(Pass, b"\x1b[200~ab\x02\x1b[201~".to_vec()), (Pressed, b"\x02".to_vec())]);
}

#[test]
fn key_that_is_read_alone_works_after_the_end_of_a_paste_was_lost() {
    for &press in PRESSES {
        let mut scanner = KeyScanner::new(Key::default());
        let mut pieces = Pieces::default();
        // With other input, it may be a part of the text.
        let together = format!("{press}x");
        let reads = ["\x1b[200~a", &together, "\x1b[20", "", "\x1b", "\x1b[97;5u", RELEASES[0], press, "q"];
        for read in reads {
            scanner.note_read(read.as_bytes());
            pieces.scan(&mut scanner, read.as_bytes());
        }
        let pasted = reads[..7].concat().into_bytes();
        let expected = [(Pass, pasted), (Pressed, press.as_bytes().to_vec()), (Pass, b"q".to_vec())];
        assert_eq!(pieces.0, expected, "{press:?}");
    }
}

#[test]
fn read_outside_a_paste_changes_nothing() {
    let mut scanner = KeyScanner::new(Key::default());
    let mut pieces = Pieces::default();
    for read in ["\x1b", "\x02", "\x1b[98", ";5u", "\x02"] {
        scanner.note_read(read.as_bytes());
        pieces.scan(&mut scanner, read.as_bytes());
    }
    let expected = [(Pass, "\x1b\x02"), (Pressed, "\x1b[98;5u"), (Pressed, "\x02")];
    assert_eq!(pieces.0, expected.map(|(kind, text)| (kind, text.as_bytes().to_vec())));
    let mut scanner = KeyScanner::new(Key::NONE);
    scanner.note_read(b"\0");
    assert_eq!(scanner.scan(&mut &b"\0"[..]), Some(Piece::Pass(b"\0")));
}

#[test]
fn input_after_a_press_is_left_to_the_caller() {
    let mut scanner = KeyScanner::new(Key::default());
    let mut typed: &[u8] = b"\x02exit\n";
    assert_eq!(scanner.scan(&mut typed), Some(Piece::Pressed(b"\x02")));
    assert_eq!(typed, b"exit\n");
}

#[test]
fn r67_burst_of_presses_leaves_nothing_for_the_job() {
    let pieces = scanned("ctrl-b", ["\x02".repeat(10).as_bytes(), "\x1b[98;5u".repeat(10).as_bytes()]);
    assert_eq!(pieces.0.len(), 20);
    assert!(pieces.0.iter().all(|(kind, _)| *kind == Pressed));
}
