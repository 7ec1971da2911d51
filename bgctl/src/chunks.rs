//! How much input for a task fits into one request.

/// Maximum number of bytes per request.
const CHUNK_BYTES: usize = 128 * 1024;

/// This many bytes fit into the smallest request that a daemon can be configured to accept.
pub const FEW_BYTES: usize = 512;

/// Returns how many bytes to put into a request of at most `frame_bytes`: each may become six characters of JSON
/// (`\u0000`).
pub fn chunk_bytes(frame_bytes: u64) -> usize {
    usize::try_from(frame_bytes / 8).unwrap_or(usize::MAX).clamp(FEW_BYTES, CHUNK_BYTES)
}

#[cfg(test)]
mod tests {
    use bgd_shared::limits::FRAME_BYTES;
    use bgd_shared::request::{Encoding, WriteParams};

    use super::*;

    #[test]
    fn chunks_fit_into_requests_of_any_limit() {
        assert_eq!(chunk_bytes(FRAME_BYTES as u64), CHUNK_BYTES);
        assert_eq!(chunk_bytes(1 << 30), CHUNK_BYTES);
        for frame in [4096u64, 65536, FRAME_BYTES as u64] {
            let (data, encoding) = Encoding::encode(vec![0; chunk_bytes(frame)]);
            let id = bgd_shared::id::TaskId::from_u128(1).into();
            let params = WriteParams { id, data, encoding, eof: false };
            let line = bgd_shared::message::request_line(u64::MAX, "task.write", &params);
            assert!(line.len() as u64 <= frame, "{} of {frame}", line.len());
        }
    }
}
