//! The key that leaves. Input typed before it reaches the job, although the answers to that are not awaited: a job that
//! does not read must not keep the user.

use bgd_shared::client::ClientError;
use bgd_shared::error::RpcError;
use bgd_shared::request::{Encoding, IdParams, TaskGet, TaskWrite, WriteParams, WriteResult};

use super::heard::takes_no_more;
use super::{Leaving, ScreenView};
use crate::failure::Failure;
use crate::terminal::attachment::{AttachmentEnd, Role};

impl ScreenView<'_> {
    /// Handles a press of the key, for which the terminal sent `length` bytes.
    pub(super) fn pressed(&mut self, length: usize) -> Result<(), Failure> {
        let has_typed = self.input.has_typed();
        self.send_unsent()?;
        if !has_typed || self.job.role != Role::Attached {
            return self.job.pressed(length);
        }
        // Calls are handled in order. Until the answer, presses are read: another one leaves at once.
        let fence = self.job.call::<TaskGet>(&IdParams { id: self.job.task.into() })?;
        self.calls.leaving = Some(Leaving { fence, length });
        Ok(())
    }

    /// Sends all remaining input without waiting for the answer to the call before.
    fn send_unsent(&mut self) -> Result<(), Failure> {
        while let Some(bytes) = self.input.take_unsent() {
            self.calls.write_again = None;
            let (data, encoding) = Encoding::encode(bytes);
            let params = WriteParams { id: self.job.task.into(), data, encoding, eof: false };
            self.calls.last_write = Some(self.job.call::<TaskWrite>(&params)?);
        }
        Ok(())
    }

    /// Reports whether the key was pressed, and all input typed before it was sent.
    pub(super) fn is_leaving(&self) -> bool {
        self.calls.leaving.is_some() || self.job.is_handing_over()
    }

    /// Reports whether this is the answer to the call after all input.
    pub(super) fn is_fence(&self, call: u64) -> bool {
        self.calls.leaving.is_some_and(|leaving| leaving.fence == call)
    }

    /// Leaves the attachment once the daemon has received all input.
    pub(super) fn leave_attached(&mut self) -> Result<(), Failure> {
        self.calls.leaving.take().map_or(Ok(()), |leaving| self.job.pressed(leaving.length))
    }

    /// Leaves the attachment although the daemon may not have received all input.
    pub(super) fn leave_at_once(&mut self) {
        self.calls.leaving = None;
        if !self.job.is_over() {
            self.job.leave(Ok(AttachmentEnd::Detached));
            self.note("the last input may not have reached the job");
        }
    }

    /// Handles the answer to the call with the last input.
    pub(super) fn last_written(&mut self, outcome: Result<WriteResult, ClientError>) -> Result<(), Failure> {
        match outcome {
            Err(ClientError::Rpc(error)) if !takes_no_more(error.kind()) => self.lose_input(&error),
            Ok(_) | Err(ClientError::Rpc(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Reports that input typed before the key was refused. It is not sent again, as later input may have been accepted.
    pub(super) fn lose_input(&mut self, error: &RpcError) {
        self.note(&format!("the last input has not reached the job: {}", error.message));
    }
}
