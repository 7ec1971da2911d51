//! Common code of the fuzz targets of all crates (R134): seeds, edits of them, and the macro that makes a test of each
//! target.
//!
//! The seeds of a target are realistic inputs, in `__fuzz__/TARGET/corpus`; an input that has found a fault is added to
//! them. Each input is tried unchanged and as edits of every seed, since few random bytes get past the first brace of a
//! request.
//!
//! Inputs are numbered, and each is derived from its number alone: a run can report the numbers that it tried, and the
//! next one continues from there (`tests/fuzz`). Under `--cfg fuzzing` an engine chooses the inputs instead.

#![cfg_attr(fuzzing, allow(dead_code, reason = "an engine does it then"))]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::splitmix::{STEP, mix};

/// Number of inputs per target in a run of all tests.
const ROUNDS: u64 = 300;

/// Maximum length of an input in bytes; three bytes make an edit.
const INPUT_BYTES: u64 = 512;

/// A parser with the properties that must hold for every input. It panics if one does not hold.
pub type Target = fn(&[u8]);

/// Returns the seeds of a target of this crate.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/__fuzz__").join(target).join("corpus");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let seeds: Vec<_> = files.into_iter().map(|file| fs::read(file).unwrap()).collect();
    assert!(!seeds.is_empty(), "{target} has no seeds");
    seeds
}

/// Edits a seed: each three bytes of the input determine the place and the kind of an edit. At most eight edits, so
/// that part of the seed remains.
fn edited(seed: &[u8], input: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for edit in input.chunks_exact(3).take(8) {
        if bytes.is_empty() {
            break;
        }
        let at = usize::from(edit[0]) * bytes.len() / 256;
        match edit[1] % 4 {
            0 => bytes[at] = edit[2],
            1 => bytes.insert(at, edit[2]),
            2 => drop(bytes.remove(at)),
            _ => {
                let end = bytes.len().min(at + usize::from(edit[2]) % 32);
                let again = bytes[at..end].to_vec();
                bytes.extend(again);
            }
        }
    }
    bytes
}

/// Tries an input unchanged and as edits of every seed.
pub fn each(seeds: &[Vec<u8>], input: &[u8], target: Target) {
    attempt(input, target);
    for seed in seeds {
        attempt(&edited(seed, input), target);
    }
}

/// Tries these bytes. If the target fails, they are saved to a file.
fn attempt(bytes: &[u8], target: Target) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(bytes))) {
        let name = thread::current().name().unwrap_or("main").replace("::", "-");
        let folder = std::env::var_os("BGD_FUZZ_FOUND").map_or_else(std::env::temp_dir, PathBuf::from);
        let file = folder.join(format!(
            "{name}-{:016x}",
            mixed(bytes.iter().fold(0, |hash, byte| { mixed(hash ^ u64::from(*byte)) }))
        ));
        let kept = fs::write(&file, bytes);
        eprintln!("these bytes are in {} ({kept:?}): {:?}", file.display(), String::from_utf8_lossy(bytes));
        resume_unwind(panic);
    }
}

/// Hashes a number.
fn mixed(number: u64) -> u64 {
    mix(number.wrapping_add(STEP))
}

/// Returns the input with this number. Small inputs, with few edits, are as frequent as large ones.
fn input(number: u64) -> Vec<u8> {
    let key = mixed(number);
    let most = 1 << (key % (u64::from(INPUT_BYTES.ilog2()) + 1));
    let length = mixed(key) % (most + 1);
    let words = (1..=length.div_ceil(8)).flat_map(|word| mixed(key.wrapping_add(word)).to_le_bytes());
    words.take(usize::try_from(length).unwrap()).collect()
}

fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text:?}")))
}

/// Tries inputs on a target: `ROUNDS` of them, or for `BGD_FUZZ_SECONDS` on all processors, starting at the number
/// `BGD_FUZZ_FROM`. In the latter case prints the number to continue from.
pub fn run(name: &str, target: Target) {
    let seeds = seeds(name);
    for seed in &seeds {
        attempt(seed, target);
    }
    let from = number_in("BGD_FUZZ_FROM").unwrap_or(0);
    let Some(seconds) = number_in("BGD_FUZZ_SECONDS") else {
        return (from..from + ROUNDS).for_each(|number| each(&seeds, &input(number), target));
    };
    let (next, has_failed) = (AtomicU64::new(from), AtomicBool::new(false));
    let end = Instant::now() + Duration::from_secs(seconds);
    let work = || {
        while Instant::now() < end && !has_failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let tried = catch_unwind(|| each(&seeds, &input(number), target));
            if tried.is_err() {
                has_failed.store(true, Ordering::Relaxed);
                eprintln!("{name}: input {number} has found a fault");
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).unwrap();
        }
    });
    println!("tried {name} {from} {}", next.load(Ordering::Relaxed));
    assert!(!has_failed.load(Ordering::Relaxed), "{name} has a fault");
}

/// Makes a test of each target; its name is also the name of the folder of its seeds.
macro_rules! targets {
    ($($test:ident: $target:expr,)*) => {
        $(#[test]
        fn $test() {
            #[cfg(not(fuzzing))]
            $crate::edits::run(stringify!($test), $target);
            #[cfg(fuzzing)]
            {
                let seeds = $crate::edits::seeds(stringify!($test));
                bolero::check!().for_each(|input: &[u8]| $crate::edits::each(&seeds, input, $target));
            }
        })*
    };
}
