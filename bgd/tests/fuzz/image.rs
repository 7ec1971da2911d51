//! The states that an upgrade in place carries: the program that takes over reads the state written by another one.

use std::fs::File;
use std::io::{Seek as _, Write as _};

use bgd::carry::image::Image;
use bgd::dispatcher::state::State;

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

/// A state is refused with an error, or is consistent: reading it again gives the same count, and another byte gives
/// another digest.
pub fn state(bytes: &[u8]) {
    let image = match Image::read(&mut file(bytes)) {
        Ok(image) => image,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let state: State = match image.decode() {
        Ok(state) => state,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    match state.count() {
        Ok(found) => {
            let again = serde_json::to_vec(&state).unwrap();
            let again: State = serde_json::from_slice(&again).unwrap();
            assert_eq!(again.count().unwrap().tasks, found.tasks);
            assert_eq!(again.count().unwrap().connections, found.connections);
        }
        Err(why) => assert!(why.starts_with("the tasks can't be read"), "{why}"),
    }
    let mut other = bytes.to_vec();
    other.push(b' ');
    let other = Image::read(&mut file(&other)).unwrap();
    assert_ne!(other.digest(), image.digest());
}

/// Returns the number of tasks in a state, if it can be read.
pub fn tasks(bytes: &[u8]) -> Option<u64> {
    let state: State = Image::read(&mut file(bytes)).ok()?.decode().ok()?;
    Some(state.count().ok()?.tasks)
}
