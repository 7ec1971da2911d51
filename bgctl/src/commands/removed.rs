//! How the verbs that remove installed files report it.

use std::path::PathBuf;

use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;

/// Prints which files were removed.
///
/// # Errors
/// Standard output can't be written.
pub fn report(removed: &[PathBuf], context: &mut Context) -> Result<Code, Failure> {
    if context.json() {
        context.print_json(&serde_json::json!({"removed": removed}))?;
    } else if removed.is_empty() {
        context.print("nothing is installed\n")?;
    }
    if !context.json() {
        for path in removed {
            context.print(&format!("removed {}\n", path.display()))?;
        }
    }
    Ok(Code::OK)
}
