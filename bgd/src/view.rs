//! Tasks as the wire shows them.

use bgd_shared::task::{Exit, Output, Progress, Task as WireTask};
use bgd_shared::text::OsText;

use crate::core::{Finished, Lingering, Snapshot, Spec, State, Work};
use crate::exec::output::OutputFolder;
use bgd_shared::request::Stream;

/// The longest description that is made of a command, in characters.
const DESCRIPTION_CHARS: usize = 200;

/// The task object of a snapshot.
pub fn task(snapshot: &Snapshot, folder: &OutputFolder) -> WireTask {
    let spec = &*snapshot.spec;
    let life = Life::of(&snapshot.state);
    let files = folder.files(snapshot.id, spec.split);
    let path = |stream| files.path(stream).to_string_lossy().into_owned();
    let (argv, shell) = match &spec.work {
        Work::Argv(argv) => (Some(argv.to_vec()), None),
        Work::Shell(command) => (None, Some(command.clone())),
    };
    WireTask {
        id: snapshot.id,
        kind: spec.kind,
        origin: spec.origin,
        foreground: false,
        status: snapshot.status(),
        description: description(spec),
        argv,
        shell,
        prompt: None,
        agent: None,
        agent_session: None,
        session: spec.session.as_deref().map(Into::into),
        channel: spec.channel.as_deref().map(Into::into),
        tags: spec.tags.iter().map(std::string::ToString::to_string).collect(),
        cwd: OsText::clone(&spec.cwd),
        pid: life.pid,
        run: snapshot.run,
        resume_count: snapshot.resume_count,
        created_at: snapshot.created_at,
        started_at: life.started_at,
        completed_at: life.completed_at,
        retrieved_at: snapshot.retrieved_at,
        exit: life.exit,
        error: snapshot.error().map(Into::into),
        lingering: life.lingering,
        progress: Progress {
            output_bytes: snapshot.output_bytes,
            updated_at: snapshot.updated_at,
            ..Progress::default()
        },
        output: Output {
            path: path(Stream::Stdout),
            stderr_path: spec.split.then(|| path(Stream::Stderr)),
            bytes: snapshot.output_bytes,
            dropped_bytes: snapshot.dropped[0],
            stderr_dropped_bytes: snapshot.dropped[1],
        },
    }
}

/// What the state says about the process.
#[derive(Default)]
struct Life {
    pid: Option<i32>,
    started_at: Option<bgd_shared::time::Timestamp>,
    completed_at: Option<bgd_shared::time::Timestamp>,
    exit: Option<Exit>,
    lingering: bool,
}

impl Life {
    fn of(state: &State) -> Self {
        match state {
            State::Queued { .. } | State::Starting { .. } => Self::default(),
            State::Running { pid, started_at, .. } => {
                Self { pid: Some(*pid), started_at: Some(*started_at), ..Self::default() }
            }
            State::Stopping { pid, started_at, exit, .. } => Self {
                pid: Some(*pid),
                started_at: Some(*started_at),
                exit: exit.clone(),
                lingering: exit.is_some(),
                ..Self::default()
            },
            State::Finished(Finished { pid, started_at, completed_at, exit, lingering, .. }) => Self {
                pid: *pid,
                started_at: *started_at,
                completed_at: Some(*completed_at),
                exit: exit.clone(),
                lingering: *lingering != Lingering::No,
            },
        }
    }
}

fn description(spec: &Spec) -> String {
    if let Some(description) = &spec.description {
        return description.to_string();
    }
    let command = match &spec.work {
        Work::Argv(argv) => {
            let words: Vec<_> = argv.iter().map(OsText::to_string_lossy).collect();
            words.join(" ")
        }
        Work::Shell(line) => line.to_string_lossy().into_owned(),
    };
    if command.chars().nth(DESCRIPTION_CHARS).is_none() {
        return command;
    }
    command.chars().take(DESCRIPTION_CHARS - 1).chain(['…']).collect()
}
