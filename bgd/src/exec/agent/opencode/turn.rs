//! One turn of a session, according to events and messages that were read. Determines the news and whether the turn is
//! over, without I/O.
//!
//! The id given to the prompt decides which messages belong to the turn: an assistant message names the user message
//! that it answers. After the server has compacted a conversation that got too long, it continues by itself with a
//! message in the user's name; that message belongs to the turn as well.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bgd_shared::consumption::{Cost, PlanStep};
use serde::{Deserialize, Serialize};

use super::super::connection::TurnEnd;
use super::ending::{self, Last};
use super::pieces::{LastPiece, Relation};
use super::text::Text;
use super::wire::{Delta, Fault, Info, Message, Part, Taken};
use crate::core::{Context, CostScope, Report, Tokens};
use crate::os::clock;

/// How many messages of a turn are tracked. The text of further ones is not passed on; the end is still detected.
const MESSAGES: usize = 16_384;

/// How many parts of a message are tracked. Further ones are dropped.
const PARTS: usize = 4096;

/// Something new in a turn.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// A piece of the answer, with its relation to the one before it.
    Text(Relation, String),
    /// A tool is called.
    Tool(String),
    /// The model's request is retried, for this reason.
    Retries(String),
    /// The turn's consumption so far.
    Consumed(Report),
    Plan(Vec<PlanStep>),
    /// A sign of activity with nothing to record.
    Activity,
}

/// The currency of the costs that the server computes.
const CURRENCY: &str = "USD";

/// The information besides the messages that decides whether a turn is over.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// Whether the session was busy when its status was read, before the messages were.
    pub busy: bool,
    /// Whether an answer had begun before the status was read. Until then a session that got a prompt can seem idle.
    pub had_begun: bool,
    /// The time of the look.
    pub now: Instant,
    /// Whether the daemon asked the turn to end.
    pub cancelled: bool,
    /// How long the session may seem idle with an incomplete answer.
    pub grace: Duration,
    /// How long the turn may take to begin.
    pub stall: Duration,
}

/// An answer of the turn.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Tracked {
    summary: bool,
    /// Whether the complete message was read, so that nothing in it is new any more.
    settled: bool,
    taken: Taken,
    parts: HashMap<String, Piece>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Piece {
    Text(Text),
    Tool,
    Other,
}

/// An error that a session reported, with its time.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SessionError {
    #[serde(with = "clock::instant")]
    since: Instant,
    fault: Fault,
}

/// The state of a turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Turn {
    /// The user messages that the turn answers: the prompt, and those that the server wrote in the user's name.
    asked: HashSet<String>,
    prompt: String,
    prompt_created: f64,
    /// The newest user message that is not known to belong to the turn.
    foreign: Option<String>,
    /// Whether the conversation was compacted, so that the next user message is the server's own.
    goes_on: bool,
    messages: HashMap<String, Tracked>,
    #[serde(default)]
    last_piece: LastPiece,
    last: Option<Last>,
    /// Whether an answer to a message outside of the turn is newer than `last`.
    superseded: bool,
    #[serde(with = "clock::instant")]
    began: Instant,
    /// Determined again after an upgrade.
    #[serde(skip)]
    idle_since: Option<Instant>,
    /// Whether the session has been busy since the prompt was sent.
    was_busy: bool,
    /// The first error that the session reported. It counts only if no answer comes.
    trouble: Option<SessionError>,
    /// A question of the model that got no answer.
    unanswered: Option<String>,
    /// The sum of its messages' consumption.
    sum: Taken,
    /// The number of tokens in the context, according to its newest message.
    context: Option<u64>,
    /// The last reported values of `sum` and `context`.
    #[serde(rename = "told")]
    reported: (Taken, Option<u64>),
}

impl Turn {
    /// Creates a turn whose prompt is the user message with this id.
    pub fn new(prompt: String, now: Instant) -> Self {
        Self {
            asked: HashSet::from([prompt.clone()]),
            prompt,
            prompt_created: 0.0,
            foreign: None,
            goes_on: false,
            messages: HashMap::new(),
            last_piece: LastPiece::default(),
            last: None,
            superseded: false,
            began: now,
            idle_since: None,
            was_busy: false,
            trouble: None,
            unanswered: None,
            sum: Taken::default(),
            context: None,
            reported: Default::default(),
        }
    }

    /// Returns the turn's consumption, if it has changed since the last call.
    pub fn consumed(&mut self) -> Option<News> {
        let now = (self.sum, self.context);
        if std::mem::replace(&mut self.reported, now) == now {
            return None;
        }
        let cost = Cost { amount: self.sum.cost, currency: CURRENCY.to_owned() };
        Some(News::Consumed(Report {
            tokens: Some(self.sum.tokens),
            context: self.context.map(|tokens| Context { tokens, size: None }),
            cost: Some((CostScope::Run, cost)),
        }))
    }

    /// Returns whether an answer has begun.
    pub fn has_begun(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Returns whether this message and everything before it is known: it is the prompt, or an answer that was read
    /// when complete.
    pub fn knows(&self, message: &str) -> bool {
        self.prompt == message || self.messages.get(message).is_some_and(|mine| mine.settled)
    }

    /// Returns whether an answer of the turn has this id.
    pub fn has(&self, message: &str) -> bool {
        self.messages.contains_key(message)
    }

    /// Notes that events may have been lost.
    pub fn lose_track(&mut self) {
        for piece in self.messages.values_mut().flat_map(|mine| mine.parts.values_mut()) {
            if let Piece::Text(text) = piece {
                text.lose_track();
            }
        }
    }

    /// Handles an event: the session is busy.
    pub fn on_busy(&mut self) {
        self.was_busy = true;
    }

    /// Notes an error of the session. It counts only if no answer comes; an answer has its own error.
    pub fn complain(&mut self, now: Instant, fault: Fault) {
        if self.trouble.is_none() {
            self.trouble = Some(SessionError { since: now, fault });
        }
    }

    /// Notes that a question of the model got no answer.
    pub fn question_unanswered(&mut self, question: String) {
        self.unanswered = Some(question);
    }

    /// Handles an event: a message was created or changed.
    pub fn on_message(&mut self, info: &Info) -> Option<News> {
        if info.is_assistant() {
            let is_mine = info.parent.as_ref().is_some_and(|parent| self.asked.contains(parent));
            return (is_mine && self.follow(info)).then_some(News::Activity);
        }
        if info.id == self.prompt {
            self.prompt_created = info.time.created;
        } else if !self.asked.contains(&info.id) && self.is_later(info) {
            if self.goes_on {
                self.goes_on = false;
                self.asked.insert(info.id.clone());
            } else {
                self.foreign = Some(info.id.clone());
            }
        }
        None
    }

    /// Handles an event: a part was created or changed.
    pub fn on_part(&mut self, part: &Part) -> Option<News> {
        if self.foreign.as_ref() == Some(&part.message) {
            if is_compaction(part) || part.synthetic {
                self.goes_on = is_compaction(part);
                self.asked.extend(self.foreign.take());
            }
            return None;
        }
        let closed = part.time.is_some_and(|time| time.end.is_some());
        self.part(part, |text| text.update(&part.text, closed))
    }

    /// Handles an event: a part has grown.
    pub fn on_delta(&mut self, delta: &Delta) -> Option<News> {
        let mine = self.messages.get_mut(&delta.message).filter(|mine| !mine.settled)?;
        let new = match mine.parts.get_mut(&delta.part) {
            Some(Piece::Text(text)) if delta.field == "text" => text.grow(&delta.piece),
            _ => return Some(News::Activity),
        };
        self.text(&delta.message, &delta.part, new)
    }

    /// Handles messages that were read, in order, the newest last. They begin at or before the prompt, or at or before
    /// a message that [`Self::knows`].
    pub fn read(&mut self, messages: &[Message]) -> Vec<News> {
        let mut all_news = Vec::new();
        let first = messages.iter().rposition(|message| self.knows(&message.info.id)).unwrap_or(0);
        let mut goes_on = false;
        for message in messages.get(first..).unwrap_or_default() {
            let info = &message.info;
            if info.is_assistant() {
                if info.parent.as_ref().is_some_and(|parent| self.asked.contains(parent)) {
                    self.read_one(message, &mut all_news);
                } else if self.last.is_some() {
                    self.superseded = true;
                }
            } else if info.id == self.prompt {
                self.prompt_created = info.time.created;
            } else if self.is_later(info) {
                let sums_up = message.parts.iter().any(is_compaction);
                let is_servers = !message.parts.is_empty() && message.parts.iter().all(|part| part.synthetic);
                if sums_up || goes_on || is_servers {
                    self.asked.insert(info.id.clone());
                }
                goes_on = sums_up;
            }
        }
        all_news
    }

    fn read_one(&mut self, message: &Message, all_news: &mut Vec<News>) {
        let info = &message.info;
        self.superseded = false;
        self.last = Some(Last::of(message));
        if !self.follow(info) {
            return;
        }
        for part in &message.parts {
            let closed = info.is_done() || part.time.is_some_and(|time| time.end.is_some());
            let part = Part { message: info.id.clone(), ..part.clone() };
            all_news.extend(self.part(&part, |text| text.read(&part.text, closed)));
        }
        if let Some(mine) = self.messages.get_mut(&info.id)
            && info.is_done()
        {
            mine.settled = true;
            mine.parts = HashMap::new();
        }
    }

    /// Returns the end of the turn; `None` if the turn is not over.
    pub fn judge(&mut self, sight: &Observation) -> Option<TurnEnd> {
        if sight.busy && !self.superseded {
            self.idle_since = None;
            self.was_busy = true;
            return None;
        }
        let idle_since = *self.idle_since.get_or_insert(sight.now);
        let idle_for = sight.now.saturating_duration_since(idle_since);
        let Some(last) = &self.last else { return self.judge_silence(sight, idle_for) };
        if last.is_done() {
            let end = || last.end(sight.cancelled, self.unanswered.as_deref());
            return (sight.had_begun || self.superseded).then(end);
        }
        let broken = || TurnEnd::Failed("the server stopped in the middle of the answer".into());
        (idle_for >= sight.grace).then(|| if sight.cancelled { TurnEnd::Cancelled } else { broken() })
    }

    /// Judges a turn without an answer.
    fn judge_silence(&self, sight: &Observation, idle_for: Duration) -> Option<TurnEnd> {
        if let Some(SessionError { since, fault }) = &self.trouble
            && idle_for.min(sight.now.saturating_duration_since(*since)) >= sight.grace
        {
            return Some(if sight.cancelled { TurnEnd::Cancelled } else { ending::of_fault(fault) });
        }
        // A cancel that arrived before the server started with the prompt had no effect.
        let may_begin = match (self.was_busy, self.prompt_created > 0.0) {
            (true, _) => Duration::ZERO,
            (false, true) => sight.grace,
            (false, false) => sight.grace * 3,
        };
        if sight.cancelled && idle_for >= may_begin {
            return Some(TurnEnd::Cancelled);
        }
        let waited = sight.now.saturating_duration_since(self.began).min(idle_for);
        let failed = || format!("the server accepted the prompt, but did nothing for {waited:.0?}");
        (waited >= sight.stall).then(|| TurnEnd::Failed(failed().into()))
    }

    /// Returns the id of the last message, for the log.
    pub fn last(&self) -> Option<&str> {
        self.last.as_ref().map(Last::id)
    }

    /// Tracks an answer. Returns whether it can still contain news.
    fn follow(&mut self, info: &Info) -> bool {
        if !self.messages.contains_key(&info.id) && self.messages.len() >= MESSAGES {
            return false;
        }
        let mine = self.messages.entry(info.id.clone()).or_default();
        mine.summary = info.is_summary();
        if let Some(taken) = info.taken() {
            self.sum = self.sum.with(taken, std::mem::replace(&mut mine.taken, taken));
            // The next message's context consists of this message's input and output.
            let Tokens { input, output, cached } = taken.tokens;
            self.context = Some(input.saturating_add(output).saturating_add(cached));
        }
        !mine.settled
    }

    fn part(&mut self, part: &Part, write: impl FnOnce(&mut Text) -> String) -> Option<News> {
        let mine = self.messages.get_mut(&part.message).filter(|mine| !mine.settled)?;
        if !mine.parts.contains_key(&part.id) {
            if mine.parts.len() >= PARTS {
                return None;
            }
            let piece = match part.kind.as_str() {
                "text" if !mine.summary => Piece::Text(Text::default()),
                "tool" => Piece::Tool,
                _ => Piece::Other,
            };
            let is_tool = matches!(piece, Piece::Tool);
            mine.parts.insert(part.id.clone(), piece);
            if is_tool {
                self.last_piece.tool_called();
                return Some(News::Tool(part.tool.clone()));
            }
        }
        let new = match mine.parts.get_mut(&part.id) {
            Some(Piece::Text(text)) => write(text),
            _ => return Some(News::Activity),
        };
        self.text(&part.message, &part.id, new)
    }

    fn text(&mut self, message: &str, part: &str, new: String) -> Option<News> {
        if new.is_empty() {
            return None;
        }
        Some(News::Text(self.last_piece.relate(message, part, &new), new))
    }

    /// Returns whether a user message was written after the prompt. Earlier ones change now and then, too.
    fn is_later(&self, info: &Info) -> bool {
        self.prompt_created > 0.0 && info.time.created >= self.prompt_created
    }
}

/// Returns whether the part shows that the server compacts the conversation by itself. A compaction that a person
/// requests is not part of the turn.
fn is_compaction(part: &Part) -> bool {
    part.kind == "compaction" && part.auto
}

impl Taken {
    /// Returns the sum after one of its terms has changed.
    fn with(self, now: Self, before: Self) -> Self {
        let count = |sum: u64, now: u64, before: u64| sum.saturating_sub(before).saturating_add(now);
        let [sum, new, old] = [self.tokens, now.tokens, before.tokens];
        Self {
            tokens: Tokens {
                input: count(sum.input, new.input, old.input),
                output: count(sum.output, new.output, old.output),
                cached: count(sum.cached, new.cached, old.cached),
            },
            cost: self.cost.minus(before.cost).unwrap_or_default().plus(now.cost),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn turn() -> Turn {
        let mut turn = Turn::new("msg_1".to_owned(), Instant::now());
        assert_eq!(
            turn.on_message(&serde_json::from_value(user("msg_1", 10)["info"].clone()).unwrap()),
            None
        );
        turn
    }

    fn user(id: &str, created: u32) -> Value {
        json!({ "info": { "id": id, "role": "user", "time": { "created": created } },
                "parts": [{ "id": "p", "type": "text", "text": "do" }] })
    }

    fn assistant(id: &str, parent: &str, more: &Value, parts: &Value) -> Value {
        let mut info =
            json!({ "id": id, "role": "assistant", "parentID": parent, "time": { "created": 11 } });
        info.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "info": info, "parts": parts })
    }

    fn answer(id: &str, parent: &str, finish: &str, text: &str) -> Value {
        let more = json!({ "time": { "created": 11, "completed": 12 }, "finish": finish });
        assistant(id, parent, &more, &json!([{ "id": format!("{id}p"), "type": "text", "text": text }]))
    }

    fn read(turn: &mut Turn, messages: &[Value]) -> String {
        let messages: Vec<Message> =
            messages.iter().map(|message| serde_json::from_value(message.clone()).unwrap()).collect();
        let text = |news| if let News::Text(_, text) = news { text } else { String::new() };
        turn.read(&messages).into_iter().map(text).collect()
    }

    fn sight(busy: bool) -> Observation {
        let (grace, stall) = (Duration::from_secs(3), Duration::from_mins(1));
        Observation { busy, had_begun: true, now: Instant::now(), cancelled: false, grace, stall }
    }

    fn later(sight: Observation, seconds: u64) -> Observation {
        Observation { now: sight.now + Duration::from_secs(seconds), ..sight }
    }

    #[test]
    fn only_a_response_to_the_prompt_ends_the_turn() {
        let mut turn = turn();
        assert_eq!(read(&mut turn, &[answer("a0", "msg_0", "stop", "old"), user("msg_1", 10)]), "");
        assert_eq!(turn.judge(&sight(false)), None);
        let steps = [user("msg_1", 10), answer("a1", "msg_1", "tool-calls", "one ")];
        assert_eq!(read(&mut turn, &steps), "one ");
        assert_eq!(turn.judge(&sight(true)), None);
        assert_eq!(read(&mut turn, &[steps[1].clone(), answer("a2", "msg_1", "stop", "two")]), "two");
        assert_eq!(turn.judge(&sight(true)), None);
        assert_eq!(turn.judge(&Observation { had_begun: false, ..sight(false) }), None);
        assert_eq!(turn.judge(&sight(false)), Some(TurnEnd::Completed));
    }

    #[test]
    fn texts_of_other_messages_and_parts_are_kept_apart() {
        let mut turn = turn();
        let text = |id: &str, text: &str| json!({ "id": id, "type": "text", "text": text });
        let done = json!({ "time": { "created": 11, "completed": 12 }, "finish": "stop" });
        let tool = json!({ "id": "p3", "type": "tool", "tool": "bash" });
        let parts = json!([text("p1", "one"), text("p2", "two"), tool, text("p4", "four")]);
        let messages = [
            user("msg_1", 10),
            assistant("a1", "msg_1", &done, &parts),
            answer("a2", "msg_1", "stop", "five"),
        ];
        let messages = messages.map(|message| serde_json::from_value(message).unwrap());
        let piece = |relation, text: &str| News::Text(relation, text.to_owned());
        let news = [
            piece(Relation::Continues, "one"),
            piece(Relation::OtherPart, "two"),
            News::Tool("bash".to_owned()),
            piece(Relation::Continues, "four"),
            piece(Relation::OtherMessage, "five"),
        ];
        assert_eq!(turn.read(&messages), news);
    }

    #[test]
    fn r160_usage_of_all_messages_of_a_turn_adds_up() {
        let mut turn = turn();
        let message = |id: &str, parent: &str, input: u64, cost: f64| {
            let tokens =
                json!({ "input": input, "output": 2, "reasoning": 1, "cache": { "read": 4, "write": 0 } });
            let more = json!({ "tokens": tokens, "cost": cost });
            assistant(id, parent, &more, &json!([]))
        };
        let mut consumed = |messages: &[Value]| {
            read(&mut turn, messages);
            let Some(News::Consumed(report)) = turn.consumed() else { return None };
            let (tokens, context) = (report.tokens.unwrap(), report.context.unwrap());
            assert_eq!(context.size, None);
            Some((
                tokens.input,
                tokens.output,
                tokens.cached,
                context.tokens,
                report.cost.unwrap().1.amount.units(),
            ))
        };
        assert_eq!(consumed(&[user("msg_1", 10), assistant("a1", "msg_1", &json!({}), &json!([]))]), None);
        let first = [user("msg_1", 10), message("a1", "msg_1", 10, 0.5)];
        assert_eq!(consumed(&first), Some((10, 3, 4, 17, 0.5)));
        assert_eq!(consumed(&first), None, "nothing has changed");
        let grown = message("a1", "msg_1", 20, 0.75);
        let foreign = message("b1", "msg_0", 900, 9.0);
        let second = [user("msg_1", 10), grown, message("a2", "msg_1", 30, 0.25), foreign];
        assert_eq!(consumed(&second), Some((50, 6, 8, 37, 1.0)));
    }

    #[test]
    fn response_to_another_prompt_ends_the_turn_before_idle() {
        let mut turn = turn();
        let mine = [user("msg_1", 10), answer("a1", "msg_1", "stop", "mine")];
        let theirs = [user("msg_2", 12), answer("a2", "msg_2", "stop", "theirs")];
        assert_eq!(read(&mut turn, &[&mine[..], &theirs].concat()), "mine");
        assert_eq!(turn.judge(&sight(true)), Some(TurnEnd::Completed));
    }

    #[test]
    fn unfinished_response_fails_after_a_delay() {
        let mut turn = turn();
        read(&mut turn, &[user("msg_1", 10), assistant("a", "msg_1", &json!({}), &json!([]))]);
        let now = sight(false);
        assert_eq!(turn.judge(&now), None);
        assert_eq!(turn.judge(&later(now, 2)), None);
        assert!(matches!(turn.judge(&later(now, 3)), Some(TurnEnd::Failed(_))));
    }

    #[test]
    fn cancelled_unstarted_prompt_ends_only_after_a_delay() {
        let mut turn = turn();
        let now = Observation { had_begun: false, cancelled: true, ..sight(false) };
        assert_eq!(turn.judge(&now), None);
        assert_eq!(turn.judge(&later(now, 3)), Some(TurnEnd::Cancelled));
        turn.on_busy();
        assert_eq!(turn.judge(&now), Some(TurnEnd::Cancelled));
        let mut unknown = Turn::new("msg_1".to_owned(), now.now);
        assert_eq!(unknown.judge(&now), None);
        assert_eq!(unknown.judge(&later(now, 8)), None);
        assert_eq!(unknown.judge(&later(now, 9)), Some(TurnEnd::Cancelled));
    }

    #[test]
    fn prompt_without_response_fails_with_the_reported_error() {
        let mut turn = turn();
        let now = Observation { had_begun: false, ..sight(false) };
        assert_eq!(turn.judge(&now), None);
        assert_eq!(turn.judge(&later(now, 59)), None);
        turn.complain(now.now, serde_json::from_value(json!({ "name": "UnknownError" })).unwrap());
        assert_eq!(turn.judge(&later(now, 5)), Some(TurnEnd::Failed("UnknownError".into())));
    }

    #[test]
    fn compaction_is_part_of_the_turn_but_not_of_the_answer() {
        let mut turn = turn();
        let mut sums = user("msg_2", 12);
        sums["parts"] = json!([{ "id": "c", "type": "compaction", "auto": true }]);
        let mut summary = answer("a2", "msg_2", "stop", "summary");
        summary["info"]["summary"] = json!(true);
        let all = [
            user("msg_1", 10),
            answer("a1", "msg_1", "tool-calls", "one "),
            sums,
            summary,
            user("msg_3", 13),
            answer("a3", "msg_3", "stop", "two"),
            user("msg_4", 14),
            answer("a4", "msg_4", "stop", "foreign"),
        ];
        assert_eq!(read(&mut turn, &all), "one two");
        assert_eq!(turn.judge(&sight(true)), Some(TurnEnd::Completed));
    }
}
