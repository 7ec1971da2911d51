//! Fetches the tasks of a list, which come in pages. Prints nothing.

use bgd_shared::limits::LIST_PAGE;
use bgd_shared::request::{ListParams, ListResult};

use crate::failure::Failure;

/// Fetches up to `wanted` tasks as one result, in as many calls as needed.
pub fn fetch(
    asked: &ListParams,
    wanted: usize,
    mut call: impl FnMut(&ListParams) -> Result<ListResult, Failure>,
) -> Result<ListResult, Failure> {
    let mut params = ListParams { limit: Some(wanted.min(LIST_PAGE)), ..asked.clone() };
    let mut result = call(&params)?;
    while result.next.is_some() && result.tasks.len() < wanted {
        params.after = result.next;
        params.limit = Some((wanted - result.tasks.len()).min(LIST_PAGE));
        let page = call(&params)?;
        result.tasks.extend(page.tasks);
        result.next = page.next;
        result.summary = page.summary;
    }
    Ok(result)
}
