//! The dispatcher's part in agent tasks: who gets a prompt. The agents themselves live on their own thread.

use std::sync::Arc;
use std::time::Duration;

use bgd_shared::agent::{AgentInfo, AgentListParams, AgentListResult, AgentProtocol, AgentSettings};
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::text::Env;

use super::{Dispatcher, Shape};
use crate::agents::Agent;
use crate::answer::Answer;
use crate::core::{AgentWork, Command, Fact, Refusal, Request, Spec, State, Work};
use crate::exec::agent::{Control, Order, Tell, TurnOrder};
use crate::exec::host::SIGKILL;
use crate::exec::kin;
use crate::exec::messages::Report;
use crate::mailbox::Internal;

impl Dispatcher {
    /// Has a turn begun.
    pub(super) fn prompt(&mut self, order: TurnOrder) {
        let (task, run) = (order.task, order.run);
        self.notifier.begin_typing(task, &order.spec);
        if let Err(error) = self.agents.start() {
            let refusal =
                Refusal::new(ErrorKind::Internal, format!("cannot start a thread for agents: {error}"));
            let fact = Fact::Refused(Box::new(refusal));
            return self.around.facts.send(Report::Fact { task, run, fact });
        }
        self.agents.order_if_started(Order::Turn(Box::new(order)));
    }

    /// Submits a prompt when a worker has seen that its agent's program is there.
    pub(super) fn submit_prompt(&self, answer: Answer, mut command: Box<Command>, agent: Option<&str>) {
        let agent = match self.known_agents.find(agent) {
            Ok(agent) => Arc::clone(agent),
            Err(error) => return answer.refuse(&error),
        };
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let named = match &command.spec.work {
            Work::Agent(work) => Arc::clone(&work.settings),
            Work::Argv(_) | Work::Shell(_) => Arc::default(),
        };
        if let Err(error) = agent.takes(&named) {
            return answer.refuse(&error);
        }
        command.spec.split = agent.protocol == AgentProtocol::Template;
        command.spec.work = Work::Agent(AgentWork {
            name: Arc::clone(&agent.name),
            stalled_after_ms: ms(agent.stalled_after),
            ask_timeout_ms: ms(agent.ask_timeout),
            warning: agent
                .warning(&command.env, &named)
                .map(Arc::from)
                .or_else(|| self.known_warning(&agent, &command.env, &named)),
            settings: named,
        });
        let internals = self.internals.clone();
        self.around.workers.later(move || {
            let result = agent.check(&command.env);
            internals.send(Internal::AgentFound { answer, command, result });
        });
    }

    /// What earlier sessions have shown of an agent, unless this one may be another matter.
    fn known_warning(&self, agent: &Agent, env: &Env, named: &AgentSettings) -> Option<Arc<str>> {
        let is_other = agent.is_told_to_ask(env) || named.mode.is_some() || !named.config.is_empty();
        self.agent_warnings.get(&agent.name).filter(|_| !is_other).cloned()
    }

    /// A session has shown what its agent can do: whoever submits a prompt to that is told.
    pub(super) fn warned(&mut self, task: TaskId, text: &str) {
        let task = self.core.get(&task.into()).ok();
        if let Some(Work::Agent(work)) = task.as_ref().map(|task| &task.spec.work) {
            self.agent_warnings.insert(Arc::clone(&work.name), text.into());
        }
    }

    /// Has a worker look at who answers an agent's question, which must not be that agent.
    pub(super) fn answer_question(&mut self, answer: Answer, request: Request) {
        let asking = match &request {
            Request::Answer { id, .. } => self.core.get(id).ok(),
            _ => None,
        };
        let agent = asking.and_then(|task| match task.state {
            State::Running { pid: Some(pid), .. } => Some((task.id, pid)),
            _ => None,
        });
        // A client in another pid namespace is no child of the agent; a server of the user's own is not looked at.
        let (Some(client), Some((task, agent))) = (answer.client().process, agent) else {
            return self.ask(answer, Shape::Plain, request);
        };
        let internals = self.internals.clone();
        self.around.workers.later(move || match kin::may_answer(client, agent, task) {
            Ok(()) => internals.send(Internal::MayAnswer { answer, request }),
            Err(error) => answer.refuse(&error),
        });
    }

    /// Lists the agents when a worker has seen which programs are there; with `check`, starts these.
    pub(super) fn list_agents(&mut self, answer: Answer, params: AgentListParams) {
        let AgentListParams { env, check, names, env_fd: _ } = params;
        let env = Arc::new(env.unwrap_or_else(Env::of_this_process));
        let agents = Arc::clone(&self.known_agents);
        let (found_env, internals) = (Arc::clone(&env), self.internals.clone());
        self.around.workers.later(move || {
            let found = agents.list(&names, &found_env);
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
        if let Err(error) = self.agents.start() {
            let message = format!("cannot start a thread for agents: {error}");
            return answer.refuse(&RpcError::new(ErrorKind::Internal, message));
        }
        let tell = Tell(Box::new(move |agents| answer.give(&AgentListResult { agents })));
        self.agents.order_if_started(Order::Check { agents, env, tell });
    }

    /// The turn of a task that was told to end; nothing if it is a process.
    pub(super) fn stop_turn(&self, task: TaskId, run: u32, signal: i32) {
        let control = Control::Stop { force: signal == SIGKILL };
        self.agents.order_if_started(Order::Control { task, run, control });
    }

    /// The agent that a task names. If there is none, the task is told.
    pub(super) fn agent_of(&self, task: TaskId, run: u32, spec: &Spec) -> Option<Arc<Agent>> {
        let name = match &spec.work {
            Work::Agent(agent) => Some(&*agent.name),
            Work::Argv(_) | Work::Shell(_) => None,
        };
        match self.known_agents.find(name) {
            Ok(agent) => Some(Arc::clone(agent)),
            // The configuration was read again meanwhile, and has it no more.
            Err(error) => {
                let fact = Fact::Refused(Box::new(error.into()));
                self.around.facts.send(Report::Fact { task, run, fact });
                None
            }
        }
    }
}
