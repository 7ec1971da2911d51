//! The dispatcher's part in listing and checking executors.

use std::sync::Arc;

use bgd_shared::error::RpcError;
use bgd_shared::request::{ExecutorCheck, ExecutorInfo, ExecutorListParams, ExecutorListResult};
use tokio::sync::oneshot;

use super::Dispatcher;
use crate::client::answer::Answer;
use crate::exec::executor::Check;
use crate::exec::silence;
use crate::remotes::Remote;

/// The name of the executor for this machine.
const LOCAL: &str = "local";

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
                checks.push((executors.len(), self.check(remote)));
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
        let mut wait = self.context.waits.begin();
        let problem =
            |what: &str| ExecutorCheck { problem: Some(what.to_owned()), ..ExecutorCheck::default() };
        tokio::spawn(async move {
            for (place, check) in checks {
                executors[place].check = Some(match wait.until(check).await {
                    Some(Ok(check)) => check,
                    Some(Err(_)) => problem("it can't be queried"),
                    None => problem(silence::UNCHECKED),
                });
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
        let (tell, result) = oneshot::channel();
        let remote = Arc::clone(remote);
        self.with(remote.kind().into(), |executor| executor.check(Check::Place { remote, tell }));
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
