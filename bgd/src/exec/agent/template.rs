//! Runs a command line for each prompt. The program writes straight into the task's output, as every process does. The
//! answer and the session's id are extracted from that output after the program has ended.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bgd_shared::agent::{AgentCheck, Continuation};
use bgd_shared::consumption::{Amount, Cost};
use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::Stream;
use bgd_shared::show;
use bgd_shared::task::Exit;
use bgd_shared::text::OsText;
use nix::unistd::{Whence, lseek};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::connection::{Opened, TurnEnd, Update, Updates, Wanted};
use super::earlier::LineEnd;
use super::session_id;
use super::start::Start;
use super::stderr_tail::Excerpt;
use crate::agents::{Agent, Counts, PROMPT, PROMPT_FILE, SESSION};
use crate::carry::{CarriedFds, Fd};
use crate::core::{CostScope, Refusal, Report, Tokens};
use crate::exec::context::Context;
use crate::exec::host::{Host, Launch, PipeEnd, Process, ProcessState, SIGKILL, SIGTERM, pipe};
use crate::exec::input::feed::{Feed, FeedState};
use crate::exec::output::OutputFolder;
use crate::os::files::remove_if_there;

/// How many bytes at the end of the program's output are searched for the answer and the session.
const SEARCHED_BYTES: u64 = 16 * 1024 * 1024;

/// How many bytes at the end of its standard error are read to explain a failure.
const STDERR_BYTES: u64 = 2000;

/// The longest argument that the kernel accepts with pages of 4 KiB, in bytes, including the terminating NUL.
const ARGUMENT_BYTES: usize = 128 * 1024;

/// One turn, run as a command line.
#[derive(Debug)]
pub struct Template {
    host: Host,
    start: Start,
    context: Context,
    turn: RefCell<Option<Turn>>,
    process: RefCell<Option<Process>>,
    /// The program, from its start to its exit.
    running: RefCell<Option<Running>>,
    /// Whether the turn was asked to end, possibly before its process started.
    cancelled: Cell<bool>,
}

/// A running program, as carried over an upgrade.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TemplateState {
    process: ProcessState,
    from: [u64; 2],
    file: Option<PathBuf>,
    /// The pipe for the prompt, and the part that is still to be written to it.
    feed: Option<FeedState>,
    cancelled: bool,
}

impl TemplateState {
    pub fn descriptor(&self) -> Option<Fd> {
        self.feed.as_ref().map(|feed| feed.pipe)
    }
}

#[derive(Debug)]
struct Running {
    process: Process,
    /// The sizes of the output files before the program started.
    from: [u64; 2],
    /// Dropping this removes the file.
    file: Option<PromptFile>,
    feed: Option<Feed>,
}

#[derive(Clone, Debug)]
struct Turn {
    task: TaskId,
    run: u32,
    session: Option<Arc<str>>,
    cwd: OsText,
    updates: Updates,
}

impl Template {
    /// Creates the back end for one turn.
    pub fn new(host: Host, start: Start, context: Context) -> Self {
        let (turn, process, running) = (RefCell::default(), RefCell::default(), RefCell::default());
        Self { host, start, context, turn, process, running, cancelled: Cell::default() }
    }

    /// Stores the parameters of the turn. The id of a new session is known only once the program has printed it.
    ///
    /// # Errors
    /// A session is to be continued, but the configuration has no command line for that, or none that can take its id.
    pub fn open(&self, wanted: &Wanted, updates: Updates) -> Result<Opened, Refusal> {
        let Wanted { task, run, session, cwd, .. } = wanted.clone();
        if session.is_some() && self.start.agent.resume.is_empty() {
            let name = &self.start.agent.name;
            let message = format!("the agent {:?} has no command line to continue a session", &**name);
            let hint = format!("submit a new task, or set `resume` in [agents.{name}]");
            return Err(Refusal::new(ErrorKind::SessionExpired, message).hint(hint));
        }
        // The configuration may have changed since. A program carried over an upgrade has the id already.
        if let Some(why) =
            session.as_deref().and_then(|id| session_id::unusable(id, &self.start.agent.resume))
            && self.running.borrow().is_none()
        {
            let message = format!("the id of the conversation can't be used: {why}");
            return Err(Refusal::new(ErrorKind::SessionExpired, message).hint("submit a new task"));
        }
        self.turn.replace(Some(Turn { task, run, session: session.clone(), cwd, updates }));
        Ok(Opened { key: task.to_string().into(), session, warning: None })
    }

    /// Runs the command line to its end; for a program carried over an upgrade, only waits for its end.
    pub async fn prompt(&self, prompt: &str) -> TurnEnd {
        let Some(turn) = self.turn.borrow().clone() else {
            return TurnEnd::Failed("no turn was opened".into());
        };
        match self.run(&turn, prompt).await {
            Ok(end) => end,
            Err(error) => TurnEnd::Failed(error),
        }
    }

    /// Builds the arguments of the process.
    fn words(&self, turn: &Turn, prompt: &str, file: &str) -> Result<Vec<OsText>, Box<str>> {
        let words = command(&self.start.agent, turn.session.as_deref(), prompt, file);
        if words.iter().any(OsText::has_nul) {
            return Err(
                "an argument of its program would contain a NUL byte, which the system does not allow".into(),
            );
        }
        Ok(words)
    }

    async fn start(
        &self,
        turn: &Turn,
        argv: Vec<OsText>,
        streams: [OwnedFd; 3],
    ) -> Result<Process, Box<str>> {
        let longest = argv.iter().map(|word| word.as_bytes().len()).max().unwrap_or_default();
        let launch = Launch {
            argv,
            cwd: turn.cwd.clone(),
            env: self.start.agent.environment(&self.start.env),
            task: Some(turn.task),
            like: self.start.like.clone(),
            streams,
        };
        let process = self.host.start(launch).await.map_err(|error| {
            if longest < ARGUMENT_BYTES {
                return error;
            }
            let name = &self.start.agent.name;
            let what = format!("{error}: one argument has {longest} bytes");
            let way = "uses {prompt_file}, or no placeholder to pass the prompt on standard input";
            format!("{what} (a prompt of any length fits if [agents.{name}] {way})").into()
        })?;
        self.process.replace(Some(process.clone()));
        if self.cancelled.get() {
            process.end(SIGTERM);
        }
        Ok(process)
    }

    async fn run(&self, turn: &Turn, prompt: &str) -> Result<TurnEnd, Box<str>> {
        let has_begun = self.running.borrow().is_some();
        if !has_begun && let Err(end) = self.begin(turn, prompt).await {
            return Ok(end);
        }
        let process = self.process.borrow().clone().ok_or("its program is not known")?;
        let exit = process.exited().await;
        let running = self.running.take();
        let from = running.as_ref().map(|running| running.from).unwrap_or_default();
        // The turn is over, so kill any processes that the program left behind.
        process.end(SIGKILL);
        process.until_ended().await;
        let folder = &self.context.folder;
        let unusable = |error: io::Error| format!("its output can't be used: {error}");
        let files = folder.files(turn.task, true);
        let (out, err) = (files.path(Stream::Stdout).to_owned(), files.path(Stream::Stderr).to_owned());
        let agent = Arc::clone(&self.start.agent);
        let read = self.context.workers.run(move || Printed::read(&agent, &out, &err, from, &exit)).await;
        let printed = read.ok_or("its output can't be read")?.map_err(unusable)?;
        if let Some(id) = printed.session {
            match session_id::unusable(&id, &self.start.agent.resume) {
                None => drop(turn.updates.send(Update::Session(id)).await),
                Some(why) => tracing::warn!(task = %turn.task, "an agent's session has no usable id: {why}"),
            }
        }
        if !printed.report.is_empty() {
            let _ = turn.updates.send(Update::Consumed(printed.report)).await;
        }
        match printed.answer {
            Ok(answer) => {
                let _ = turn.updates.send(Update::Answer(answer)).await;
                Ok(TurnEnd::Completed)
            }
            Err(error) => Ok(TurnEnd::Failed(error)),
        }
    }

    /// Starts the program. Returns the end of the turn if it can't begin: then the program never got the prompt.
    async fn begin(&self, turn: &Turn, prompt: &str) -> Result<(), TurnEnd> {
        let folder = &self.context.folder;
        let not_begun = |what: &str, error: io::Error| TurnEnd::NotBegun(format!("{what}: {error}").into());
        let unusable = |error| not_begun("its output can't be used", error);
        let out = folder.append(turn.task, Stream::Stdout).map_err(unusable)?;
        let err = folder.append(turn.task, Stream::Stderr).map_err(unusable)?;
        // The program writes into the files itself, and would continue the last line of an earlier turn.
        let line_ends =
            [Stream::Stdout, Stream::Stderr].map(|stream| LineEnd::add(folder, turn.task, stream));
        // The output of earlier turns does not belong to this one.
        let from = folder.sizes(turn.task, true);
        let agent = &self.start.agent;
        // Dropping this removes the file at any end of the turn.
        let file = names(agent, PROMPT_FILE).then(|| PromptFile::write(folder, turn.task, prompt));
        let file = file.transpose().map_err(|error| not_begun("its prompt can't be written", error))?;
        let path = file.as_ref().map(|file| file.0.to_string_lossy()).unwrap_or_default();
        let argv = self.words(turn, prompt, &path).map_err(TurnEnd::NotBegun)?;
        let is_named = file.is_some() || names(agent, PROMPT);
        let unmade = |error| not_begun("cannot create its standard input", error);
        let (stdin, feed) = if is_named {
            (null().map_err(unmade)?, None)
        } else {
            let (theirs, ours) = pipe(PipeEnd::Reading).map_err(unmade)?;
            (theirs, Some(Feed::begin(ours, prompt.as_bytes().to_vec()).map_err(unmade)?))
        };
        let process = self.start(turn, argv, [stdin, out, err]).await.map_err(TurnEnd::NotBegun)?;
        line_ends.into_iter().for_each(LineEnd::keep);
        // Only now, as a newline that is taken back would count as lost output. What the program has written already
        // causes no further event.
        self.context.outputs.track(turn.task, turn.run, true);
        self.context.outputs.look_soon();
        self.running.replace(Some(Running { process, from, file, feed }));
        // Shows that the turn has begun.
        let _ = turn.updates.send(Update::Activity).await;
        Ok(())
    }

    /// Returns the state for an upgrade; `None` while the program does not run.
    pub fn state(&self, named: &mut CarriedFds) -> Option<TemplateState> {
        // `running` has the process, and [`Self::open`] gets the turn again.
        let Self { running, cancelled, host: _, start: _, context: _, turn: _, process: _ } = self;
        let running = running.borrow();
        let Running { process, from, file, feed } = running.as_ref()?;
        process.runs().then(|| TemplateState {
            process: process.state(),
            from: *from,
            file: file.as_ref().map(|file| file.0.clone()),
            feed: feed.as_ref().and_then(|feed| feed.state(named)),
            cancelled: cancelled.get(),
        })
    }

    /// Restores a program that was started before an upgrade; [`Self::open`] and [`Self::prompt`] follow.
    ///
    /// # Errors
    /// A descriptor of the program can't be used.
    pub fn restore(
        self,
        state: TemplateState,
        take: impl FnOnce(Fd) -> io::Result<OwnedFd>,
    ) -> io::Result<Self> {
        let TemplateState { process, from, file, feed, cancelled } = state;
        let process = Process::restore(process, &self.context);
        let feed =
            feed.map(|feed| take(feed.pipe).and_then(|pipe| Feed::begin(pipe, feed.rest))).transpose()?;
        self.process.replace(Some(process.clone()));
        self.running.replace(Some(Running { process, from, file: file.map(PromptFile), feed }));
        self.cancelled.set(cancelled);
        Ok(self)
    }

    /// Asks the program to end, right away or as soon as it has started.
    pub fn cancel(&self) {
        self.cancelled.set(true);
        if let Some(process) = &*self.process.borrow() {
            process.end(SIGTERM);
        }
    }

    /// Kills the program, and waits until its process tree is gone.
    pub async fn force(&self) {
        let process = self.process.borrow().clone();
        if let Some(process) = process {
            process.end(SIGKILL);
            process.until_ended().await;
        }
        // Before the end is reported: the prompt of the task's next turn is in a file of the same name.
        drop(self.running.take());
    }

    /// Returns the report about the agent that the configuration implies: its program is started only for a prompt.
    pub fn about(&self) -> AgentCheck {
        about(&self.start.agent)
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        if let Some(process) = &*self.process.borrow() {
            process.end(SIGKILL);
        }
    }
}

/// A prompt in a file that only its user can read, and that exists as long as the turn. A command line, in contrast, is
/// readable by every user of the machine.
#[derive(Debug)]
struct PromptFile(PathBuf);

impl PromptFile {
    fn write(folder: &OutputFolder, task: TaskId, prompt: &str) -> io::Result<Self> {
        let (path, mut file) = folder.create_prompt(task)?;
        let written = Self(path);
        file.write_all(prompt.as_bytes())?;
        Ok(written)
    }
}

impl Drop for PromptFile {
    fn drop(&mut self) {
        // The file is also removed with its task.
        if let Err(error) = remove_if_there(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "a prompt's file was not removed");
        }
    }
}

/// Returns the report about a template without starting its program.
pub fn about(agent: &Agent) -> AgentCheck {
    let continuation = if agent.resume.is_empty() { Continuation::None } else { Continuation::Resume };
    AgentCheck { name: None, version: None, continuation, started_in_ms: None }
}

fn null() -> io::Result<OwnedFd> {
    Ok(File::open("/dev/null")?.into())
}

fn names(agent: &Agent, part: &str) -> bool {
    agent.command.iter().any(|word| word.contains(part))
}

/// Builds the command line for a prompt. Every word stays one argument, whatever the prompt contains.
fn command(agent: &Agent, session: Option<&str>, prompt: &str, file: &str) -> Vec<OsText> {
    let (words, session) = match session {
        Some(session) => (&agent.resume, session),
        None => (&agent.command, ""),
    };
    let places = [(PROMPT, prompt), (PROMPT_FILE, file), (SESSION, session)];
    words.iter().map(|word| OsText::from(filled(word, &places).as_str())).collect()
}

/// Substitutes the placeholders in a word. Substituted text is not scanned again.
fn filled(word: &str, places: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let known = places.iter().find_map(|(place, value)| Some((rest.strip_prefix(place)?, *value)));
        let (after, value) = known.unwrap_or((&rest[1..], "{"));
        text.push_str(value);
        rest = after;
    }
    text.push_str(rest);
    text
}

/// The contents of an ended program's output.
#[derive(Debug)]
pub struct Printed {
    /// The conversation's id, if the output contains it.
    pub session: Option<Arc<str>>,
    /// The run's consumption.
    pub report: Report,
    /// The answer, or why there is none.
    pub answer: Result<String, Box<str>>,
}

impl Printed {
    /// Parses the files of standard output and error, from these offsets on.
    ///
    /// # Errors
    /// A file can't be read.
    pub fn read(agent: &Agent, out: &Path, err: &Path, from: [u64; 2], exit: &Exit) -> io::Result<Self> {
        let text = tail(out, from[0], SEARCHED_BYTES)?;
        let document = Json::of(&text);
        let session = agent.session.as_deref().and_then(|pointer| document.id_at(pointer)).map(Into::into);
        let answer = match exit {
            Exit::Code(0) => answer(agent, &text, &document),
            exit => Err(failure(exit, &tail(err, from[1], STDERR_BYTES)?, &text)),
        };
        Ok(Self { session, report: consumed(&agent.counts, &document), answer })
    }
}

/// The least number of tokens that is none: numbers in JSON are exact only up to here, and no run has that many.
const NO_TOKENS: f64 = 9_007_199_254_740_992.0;

/// Reads the run's consumption. Missing values, and values that are no numbers or can't be right, count as unknown.
fn consumed(counts: &Counts, document: &Json) -> Report {
    let number = |pointer: &Option<String>| document.number_at(pointer.as_deref()?);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
    let count = |pointer: &Option<String>| {
        number(pointer).filter(|tokens| (0.0..NO_TOKENS).contains(tokens)).map(|tokens| tokens as u64)
    };
    let (input, output) = (count(&counts.input), count(&counts.output));
    let tokens = (input.is_some() || output.is_some()).then(|| Tokens {
        input: input.unwrap_or_default(),
        output: output.unwrap_or_default(),
        cached: 0,
    });
    let cost = number(&counts.cost).and_then(Amount::of);
    let cost = cost.map(|amount| (CostScope::Run, Cost { amount, currency: counts.currency.clone() }));
    Report { tokens, context: None, cost }
}

fn answer(agent: &Agent, text: &str, document: &Json) -> Result<String, Box<str>> {
    let Some(pointer) = &agent.result else { return Ok(text.trim_end().to_owned()) };
    document.text_at(pointer).ok_or_else(|| {
        let what = if document.0.is_empty() { "is not JSON" } else { "has nothing there" };
        format!("its output {what}: expected the answer at {pointer}").into()
    })
}

fn failure(exit: &Exit, said: &str, text: &str) -> Box<str> {
    let how = exit.words();
    let said = if show::is_blank(said) { text } else { said };
    let mut excerpt = Excerpt::default();
    said.lines().for_each(|line| excerpt.push(line));
    let words: String = excerpt.last(3).join(" / ").chars().take(1000).collect();
    if words.is_empty() { how.into() } else { format!("{how}; last output: {words}").into() }
}

/// Reads the last `bytes` of a file, but nothing before the offset `from`.
fn tail(path: &Path, from: u64, bytes: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut from = from.max(size.saturating_sub(bytes));
    // The dropped part of a long output is a hole, which would be read as NULs. Start after the last hole.
    while let Ok(hole) = lseek(&file, from.cast_signed(), Whence::SeekHole)
        && let Ok(data) = lseek(&file, hole, Whence::SeekData)
    {
        from = data.cast_unsigned();
    }
    file.seek(SeekFrom::Start(from))?;
    let mut text = Vec::new();
    file.take(bytes).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The output as JSON: one document, or one document per line.
struct Json(Vec<Value>);

impl Json {
    fn of(text: &str) -> Self {
        match serde_json::from_str(text) {
            Ok(value) => Self(vec![value]),
            Err(_) => Self(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
        }
    }

    /// Returns the number at `pointer` in the last document that has one there. Some programs write numbers as strings.
    fn number_at(&self, pointer: &str) -> Option<f64> {
        self.0.iter().rev().find_map(|value| match value.pointer(pointer)? {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        })
    }

    /// Returns the value at `pointer` in the last document that has a value other than `null` there.
    fn text_at(&self, pointer: &str) -> Option<String> {
        self.texts_at(pointer).next()
    }

    /// Like [`Self::text_at`], without blank values: they name nothing.
    fn id_at(&self, pointer: &str) -> Option<String> {
        self.texts_at(pointer).find(|id| !show::is_blank(id))
    }

    fn texts_at(&self, pointer: &str) -> impl Iterator<Item = String> {
        self.0.iter().rev().filter_map(move |value| match value.pointer(pointer)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(command: &[&str], resume: &[&str]) -> Agent {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        Agent { command: words(command), resume: words(resume), ..Agent::new("x") }
    }

    #[test]
    fn placeholders_are_filled_once_and_words_stay_whole() {
        let agent =
            agent(&["x", "-p", "{prompt}"], &["x", "-p={prompt}", "--resume", "{session}", "@{prompt_file}"]);
        let words = |session, prompt| -> Vec<String> {
            command(&agent, session, prompt, "/f")
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect()
        };
        assert_eq!(words(None, "a 'b' {session}"), ["x", "-p", "a 'b' {session}"]);
        assert_eq!(words(Some("s1"), "{prompt}"), ["x", "-p={prompt}", "--resume", "s1", "@/f"]);
    }

    #[test]
    fn answer_is_found_in_one_or_the_last_matching_json_document() {
        let one = Json::of("{\"session_id\": \"s\", \"result\": \"it\\nworks\", \"n\": 3}\n");
        assert_eq!(one.text_at("/result").as_deref(), Some("it\nworks"));
        assert_eq!(one.text_at("/n").as_deref(), Some("3"));
        assert_eq!(one.text_at("/nothing"), None);
        let many = Json::of("starting\n{\"session\":\"a\"}\n{\"result\":\"early\"}\n{\"result\":\"late\"}\n");
        assert_eq!(many.text_at("/result").as_deref(), Some("late"));
        assert_eq!(many.text_at("/session").as_deref(), Some("a"));
        let blank = Json::of("{\"id\":\"s1\"}\n{\"id\":\" \\n\"}\n{\"id\":\"\"}\n");
        assert_eq!((blank.id_at("/id").as_deref(), blank.text_at("/id").as_deref()), (Some("s1"), Some("")));
    }

    #[test]
    fn missing_answer_fails_naming_the_expected_location() {
        let agent = Agent { result: Some("/result".into()), ..agent(&["x"], &[]) };
        let failed = answer(&agent, "oops", &Json::of("oops")).unwrap_err();
        assert_eq!(&*failed, "its output is not JSON: expected the answer at /result");
        let failed = answer(&agent, "{}", &Json::of("{}")).unwrap_err();
        assert_eq!(&*failed, "its output has nothing there: expected the answer at /result");
    }

    #[test]
    fn numbers_of_tokens_that_can_not_be_right_are_unknown() {
        let counts = Counts { input: Some("/in".into()), output: Some("/out".into()), ..Counts::default() };
        let known = |input: &str, output: &str| {
            let document = format!("{{\"in\": {input}, \"out\": {output}}}");
            consumed(&counts, &Json::of(&document)).tokens.map(|tokens| (tokens.input, tokens.output))
        };
        assert_eq!(known("12", "\"3\""), Some((12, 3)));
        assert_eq!(known("12", "9007199254740991"), Some((12, 9_007_199_254_740_991)));
        for wrong in ["1e30", "9007199254740992", "-5", "\"NaN\"", "\"inf\""] {
            assert_eq!(known(wrong, wrong), None, "{wrong}");
            assert_eq!(known("12", wrong), Some((12, 0)), "{wrong}");
        }
    }

    #[test]
    fn failure_quotes_the_last_output() {
        let message = failure(&Exit::Code(3), "warming up\n\nno such model\n", "on stdout");
        assert_eq!(&*message, "exited with code 3; last output: warming up / no such model");
        let message = failure(&Exit::Signal(9), " \n", "on stdout");
        assert_eq!(&*message, "ended by signal 9 (SIGKILL); last output: on stdout");
        assert_eq!(&*failure(&Exit::Code(3), "", ""), "exited with code 3");
        let message =
            failure(&Exit::Code(1), "Error: no key\n    at a (x:1)\n    at b (x:2)\n    at c (x:3)\n", "");
        assert_eq!(&*message, "exited with code 1; last output: Error: no key");
    }
}
