//! Parent sessions and their inboxes: `hello`, `session.end`, `inbox.read`, `inbox.list` and `inbox.ack`.

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::limits::{INBOX_PAGE, INBOX_PAGE_DEFAULT, INBOXES_PAGE};
use bgd_shared::request::{HelloParams, InboxAckParams, InboxListParams, InboxReadParams, SessionEndParams};

use super::body::Body;
use super::checks::{check_label, check_ms, check_required, invalid};
use crate::core::Request;

pub fn hello(params: HelloParams) -> Result<Body, RpcError> {
    match params.protocol {
        Some(version) if version != bgd_shared::PROTOCOL => {
            let message = format!("protocol {version} is not supported, only {}", bgd_shared::PROTOCOL);
            return Err(RpcError::new(ErrorKind::Unsupported, message)
                .hint("use a client and a daemon of the same release"));
        }
        Some(_) | None => {}
    }
    check_label("session", params.session.as_deref())?;
    if params.owns && params.session.is_none() {
        return Err(invalid("`owns` requires `session`"));
    }
    Ok(Body::Hello(params.session.filter(|_| params.owns).map(Into::into)))
}

pub fn end(params: SessionEndParams) -> Result<Body, RpcError> {
    check_required("session", &params.session)?;
    Ok(Body::Core(Request::EndSession { session: params.session.into() }))
}

pub fn read_inbox(params: InboxReadParams) -> Result<Body, RpcError> {
    let InboxReadParams { session, after, wait_ms, limit, instance } = params;
    check_required("session", &session)?;
    check_ms("wait_ms", wait_ms)?;
    let limit = limit.unwrap_or(INBOX_PAGE_DEFAULT);
    if !(1..=INBOX_PAGE).contains(&limit) {
        return Err(invalid(format!("`limit` is {limit}; it must be 1 to {INBOX_PAGE}")));
    }
    let (session, after, wait_ms) = (session.into(), after.unwrap_or(0), wait_ms.unwrap_or(0));
    Ok(Body::Inbox(instance, Request::ReadInbox { session, after, wait_ms, limit }))
}

pub fn list_inboxes(params: InboxListParams) -> Result<Body, RpcError> {
    let limit = params.limit.unwrap_or(INBOXES_PAGE);
    if !(1..=INBOXES_PAGE).contains(&limit) {
        return Err(invalid(format!("`limit` is {limit}; it must be 1 to {INBOXES_PAGE}")));
    }
    Ok(Body::Inboxes(params.after.unwrap_or(0), limit))
}

pub fn acknowledge(params: InboxAckParams) -> Result<Body, RpcError> {
    check_required("session", &params.session)?;
    let InboxAckParams { session, upto, only, reserve, instance } = params;
    let session = session.into();
    let request = if only || reserve {
        Request::TakeItem { session, number: upto, removes: !reserve }
    } else {
        Request::AckInbox { session, upto }
    };
    Ok(Body::Inbox(instance, request))
}
