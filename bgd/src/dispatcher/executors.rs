//! The dispatcher's part in listing and checking executors.

use std::sync::Arc;

use bgd_shared::error::RpcError;
use bgd_shared::request::{ExecutorCheck, ExecutorInfo, ExecutorListParams, ExecutorListResult};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::Dispatcher;
use crate::client::answer::Answer;
use crate::core::ExecutorName;
use crate::exec::executor::Check;
use crate::exec::silence::{self, Wait};
use crate::remotes::Remote;

/// The name of the executor for this machine.
const LOCAL: &str = ExecutorName::LOCAL.0;

impl Dispatcher {
    /// Lists the executors. With `check`, queries remote ones concurrently and answers when all have answered.
    pub(super) fn list_executors(&mut self, answer: Answer, params: &ExecutorListParams) {
        let remotes = match self.named(&params.names) {
            Ok(remotes) => remotes,
            Err(error) => return answer.refuse(&error),
        };
        let is_wanted =
            |name: &str| params.names.is_empty() || params.names.iter().any(|known| known == name);
        let mut executors: Vec<ExecutorInfo> = Vec::with_capacity(remotes.len() + 1);
        executors.extend(is_wanted(LOCAL).then(|| self.info(LOCAL, LOCAL, None)));
        let mut checks = Vec::new();
        for remote in &remotes {
            if params.check {
                checks.push((executors.len(), Arc::clone(remote), self.check(remote)));
            }
            let host = remote.host().map(str::to_owned);
            executors.push(self.info(&remote.name, remote.kind().as_str(), host));
        }
        if !params.check {
            return answer.give(&ExecutorListResult { executors });
        }
        if let Some(local) = executors.first_mut().filter(|executor| executor.name == LOCAL) {
            local.check = Some(self.check_local());
        }
        let (mut wait, begun) = (self.context.waits.begin(), Instant::now());
        tokio::spawn(async move {
            for (place, remote, check) in checks {
                executors[place].check = Some(checked(&remote, check, begun, &mut wait).await);
            }
            answer.give(&ExecutorListResult { executors });
        });
    }

    /// Returns the remote executors with these names, or all if there are no names.
    fn named(&self, names: &[String]) -> Result<Vec<Arc<Remote>>, RpcError> {
        if names.is_empty() {
            return Ok(self.remotes.all().cloned().collect());
        }
        names.iter().filter(|name| *name != LOCAL).map(|name| self.remotes.find(name).cloned()).collect()
    }

    fn check(&mut self, remote: &Arc<Remote>) -> oneshot::Receiver<ExecutorCheck> {
        let (done, result) = oneshot::channel();
        let remote = Arc::clone(remote);
        self.with(remote.kind().into(), |executor| executor.check(Check::Place { remote, done }));
        result
    }

    fn check_local(&self) -> ExecutorCheck {
        let slots = self.config.max_concurrent_tasks.to_string();
        ExecutorCheck {
            ok: true,
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            facts: vec![("max_concurrent_tasks".to_owned(), slots)],
            ..ExecutorCheck::default()
        }
    }

    fn info(&self, name: &str, kind: &str, host: Option<String>) -> ExecutorInfo {
        let (pending, running) = self.core.count_on((name != LOCAL).then_some(name));
        ExecutorInfo { name: name.to_owned(), kind: kind.to_owned(), host, pending, running, check: None }
    }
}

/// Waits for the result of a check that has begun at this time, as long as the check may take.
async fn checked(
    remote: &Remote,
    check: oneshot::Receiver<ExecutorCheck>,
    begun: Instant,
    wait: &mut Wait,
) -> ExecutorCheck {
    let problem = |what: &str| ExecutorCheck { problem: Some(what.to_owned()), ..ExecutorCheck::default() };
    let limit = remote.check_limit();
    match wait.until(timeout_at(begun + limit, check)).await {
        Some(Ok(Ok(check))) => check,
        Some(Ok(Err(_))) => problem("it can't be queried"),
        Some(Err(_)) => ExecutorCheck {
            hint: remote.host().map(|host| format!("check the connection with: ssh {host} true")),
            ..problem(&format!("no answer within {} s", limit.as_secs()))
        },
        None => problem(silence::UNCHECKED),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::exec::silence::Waits;
    use crate::remotes::{RemoteSettings, Shell, Ssh};

    fn remote(name: &str, seconds: u64) -> Remote {
        let shell = Shell {
            ssh: "ssh".to_owned(),
            host: name.to_owned(),
            connect_timeout: Duration::from_secs(seconds),
            bootstrap: false,
        };
        let settings = RemoteSettings::Ssh(Ssh { shell, folder: None, env: [].into() });
        Remote { name: name.into(), settings }
    }

    #[tokio::test(start_paused = true)]
    async fn r140_silent_executors_are_given_up_at_their_own_limits() {
        let (begun, mut wait) = (Instant::now(), Waits::default().begin());
        let (_slow, slow) = oneshot::channel();
        let (_hung, hung) = oneshot::channel();
        let (done, works) = oneshot::channel();
        let _ = done.send(ExecutorCheck { ok: true, ..ExecutorCheck::default() });
        for (remote, check, words) in [
            (remote("slow", 30), slow, Some("no answer within 40 s")),
            // Both have been waited for at the same time.
            (remote("hung", 2), hung, Some("no answer within 12 s")),
            (remote("works", 2), works, None),
        ] {
            let check = checked(&remote, check, begun, &mut wait).await;
            assert_eq!((check.ok, check.problem.as_deref()), (words.is_none(), words));
            assert_eq!(
                check.hint,
                words.map(|_| format!("check the connection with: ssh {} true", remote.name))
            );
        }
        assert_eq!(begun.elapsed(), Duration::from_secs(40), "the longest limit");
    }
}
