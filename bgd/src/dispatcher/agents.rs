//! The dispatcher's part in agent tasks: submitting prompts, checking who answers, listing agents. The agents
//! themselves live on their own thread.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::agent::{AgentInfo, AgentListParams, AgentListResult, AgentProtocol, AgentSettings};
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::text::Env;
use tokio::sync::oneshot;

use super::{Dispatcher, Shape};
use crate::agents::Agent;
use crate::client::answer::Answer;
use crate::core::{AgentWork, Command, ExecutorName, Request, State, Work};
use crate::exec::executor::Check;
use crate::exec::messages::Inherited;
use crate::exec::processes::ancestry;
use crate::wire::calls::PromptRequest;
use crate::wire::mailbox::Internal;

/// How long to wait for the disks of the folders in a client's `PATH`.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the error for a client whose programs can't be looked for.
fn no_answer() -> RpcError {
    let message = format!("the programs of agents were not found within {} s", PATIENCE.as_secs());
    RpcError::new(ErrorKind::Internal, message)
        .hint("a folder in PATH, or in that of an earlier agent task, is on a disk that does not answer")
}

/// The error of an agent whose check was abandoned.
const UNCHECKED: &str = "its check was given up, as the daemon was upgraded: try again";

/// Returns the entry of an agent whose check was abandoned. A template is never started for a check.
fn unchecked(info: AgentInfo) -> AgentInfo {
    let is_checked = info.available && info.protocol != AgentProtocol::Template;
    let error = is_checked.then(|| UNCHECKED.to_owned());
    AgentInfo { error: error.or(info.error), ..info }
}

impl Dispatcher {
    /// Submits a prompt once a worker has checked that the agent's program exists.
    pub(super) fn submit_prompt(&mut self, answer: Answer, request: PromptRequest) {
        let PromptRequest { agent, prompt, settings, task } = request;
        if task.key().is_some_and(|(session, key)| self.core.has_key(session, key)) {
            // The core returns the existing task, whatever the work: the agent may no longer be configured.
            let command = task.command(Work::Shell("".into()), None);
            return self.submit(answer, Box::new(command), Inherited::default());
        }
        let agent = match self.agents.find(agent.as_deref()) {
            Ok(agent) => Arc::clone(agent),
            Err(error) => return answer.refuse(&error),
        };
        if let Err(error) = agent.takes(&settings) {
            return answer.refuse(&error);
        }
        let work = Work::Agent(AgentWork {
            name: Arc::clone(&agent.name),
            stalled_after_ms: agent.stalled_after_ms(),
            ask_timeout_ms: agent.ask_timeout_ms(),
            warning: agent
                .warning(&task.env, &settings)
                .map(Arc::from)
                .or_else(|| self.known_warning(&agent, &task.env, &settings)),
            settings,
        });
        let mut command = Box::new(task.command(work, Some(prompt)));
        command.spec.split = agent.protocol == AgentProtocol::Template;
        let owns = |session: &str| self.core.owners().owns(answer.client().id, session);
        let owned = command.spec.session.as_deref().is_some_and(owns);
        let (internals, workers) = (self.internals.clone(), self.context.workers.clone());
        let env = command.env.clone();
        tokio::spawn(async move {
            // If the disks do not answer, the start will show whether there is such a program.
            let result = workers.program(PATIENCE, move || agent.check(&env)).await.unwrap_or(Ok(()));
            internals.send(Internal::AgentResolved { answer, command, owned, result });
        });
    }

    /// Reports whether the client of a submission disconnected during the agent lookup, which ends the task if it is a
    /// foreground job (R71), or belongs to a session that ended with that client (R54). The core was notified before it
    /// had the task, so nothing else would end it.
    pub(super) fn is_orphaned(&self, client: u64, command: &Command, owned: bool) -> bool {
        let has_ended = |session: &str| owned && !self.core.owners().has_owner(session);
        !self.clients.contains_key(&client)
            && (command.foreground || command.spec.session.as_deref().is_some_and(has_ended))
    }

    /// Returns the warning from earlier sessions of an agent, unless the settings of this one may make it obsolete.
    fn known_warning(&self, agent: &Agent, env: &Env, named: &AgentSettings) -> Option<Arc<str>> {
        // A session that was opened before a reload may have reported it only after that.
        let is_due = named.config.is_empty() && agent.may_act_unasked(env, named);
        self.agent_warnings.get(&agent.name).filter(|_| is_due).cloned()
    }

    /// Keeps a warning that a session reported, for later prompts to the same agent.
    pub(super) fn warned(&mut self, task: TaskId, text: &str) {
        let task = self.core.get(&task.into()).ok();
        if let Some(Work::Agent(work)) = task.as_ref().map(|task| &task.spec.work) {
            self.agent_warnings.insert(Arc::clone(&work.name), text.into());
        }
    }

    /// Has a worker check the process that answers an agent's question: it must not be the agent itself.
    pub(super) fn answer_question(&mut self, answer: Answer, request: Request) {
        let asking = match &request {
            Request::Answer { id, .. } => self.core.get(id).ok(),
            _ => None,
        };
        let agent = asking.and_then(|task| match task.state {
            State::Running { pid: Some(pid), .. } => Some((task.id, pid)),
            _ => None,
        });
        // A client in another PID namespace is not a child of the agent. An agent without a process of ours, such as a
        // server of the user's, is not checked.
        let (Some(client), Some((task, agent))) = (answer.client().process, agent) else {
            return self.ask(answer, Shape::Plain, request);
        };
        let internals = self.internals.clone();
        self.context.workers.later(move || match ancestry::may_answer(client, agent, task) {
            Ok(()) => internals.send(Internal::MayAnswer { answer, request }),
            Err(error) => answer.refuse(&error),
        });
    }

    /// Lists the agents once a worker has checked which programs exist. With `check`, also starts them.
    pub(super) fn list_agents(&mut self, answer: Answer, params: AgentListParams) {
        let AgentListParams { env, check, names, inherit: _, env_fd: _ } = params;
        let env = Arc::new(env.unwrap_or_else(Env::of_this_process));
        let agents = Arc::clone(&self.agents);
        let (internals, workers) = (self.internals.clone(), self.context.workers.clone());
        let found_env = Arc::clone(&env);
        tokio::spawn(async move {
            let found = workers.program(PATIENCE, move || agents.list(&names, &found_env)).await;
            let found = found.unwrap_or_else(|| Err(no_answer()));
            internals.send(Internal::AgentsFound { answer, env, check, found });
        });
    }

    pub(super) fn agents_found(
        &mut self,
        answer: Answer,
        env: Arc<Env>,
        check: bool,
        found: Result<Vec<(Arc<Agent>, AgentInfo)>, RpcError>,
    ) {
        let agents = match found {
            Ok(agents) => agents,
            Err(error) => return answer.refuse(&error),
        };
        if !check {
            let agents = agents.into_iter().map(|(_, info)| info).collect();
            return answer.give(&AgentListResult { agents });
        }
        let (done, checked) = oneshot::channel();
        let mut wait = self.context.waits.begin();
        // What is known of each agent without a start, in case the checks are given up.
        let unchecked: Vec<AgentInfo> = agents.iter().map(|(_, info)| unchecked(info.clone())).collect();
        self.with(ExecutorName::AGENT, |executor| executor.check(Check::Agents { agents, env, done }));
        tokio::spawn(async move {
            let ended = |_| io::Error::other("the agents can no longer be checked: their thread has ended");
            let agents = match wait.until(checked).await {
                Some(checked) => checked.map_err(ended).flatten(),
                None => Ok(unchecked),
            };
            match agents {
                Ok(agents) => answer.give(&AgentListResult { agents }),
                Err(error) => answer.refuse(&RpcError::new(ErrorKind::Internal, error.to_string())),
            }
        });
    }
}
