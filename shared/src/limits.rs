//! Protocol limits shared by both sides. Further limits of a daemon are in its configuration and in the answer to
//! `hello`.

use std::time::Duration;

/// Default maximum length of a request line in bytes, newline included.
pub const FRAME_BYTES: usize = 1024 * 1024;

/// Largest value that `limits.frame_bytes` can be set to.
pub const FRAME_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// Maximum size of an environment in bytes: Linux gives no program more than 6 MiB of arguments and environment.
pub const ENV_BYTES: usize = 6 * 1024 * 1024;

/// Maximum size in bytes of an environment that clients write into a line. A larger one travels in a memory file.
pub const ENV_INLINE_BYTES: usize = 64 * 1024;

/// Maximum length of a line in bytes that a client accepts from a daemon.
///
/// Answers may be longer than requests: `task.block` on many ids returns every task.
pub const ANSWER_BYTES: usize = 256 * 1024 * 1024;

/// Maximum number of output bytes that one `task.output` returns (before encoding).
pub const OUTPUT_CHUNK_BYTES: u64 = 256 * 1024;

/// Maximum number of output bytes that `task.result` returns for a process task: the last ones.
pub const RESULT_BYTES: u64 = 256 * 1024;

/// Maximum number of bytes of an agent's answer that are kept and returned by `task.result`: the last ones.
pub const AGENT_RESULT_BYTES: u64 = 1024 * 1024;

/// Number of bytes of a prompt that lists, events and answers show: the first ones. `task.get` shows all of it.
pub const PROMPT_BYTES: usize = 1024;

/// Maximum length of the id of an agent's session, in bytes.
pub const AGENT_SESSION_BYTES: usize = 1024;

/// Maximum length of an agent's mode or model, and of the name or value of an option, in bytes.
pub const AGENT_SETTING_BYTES: usize = 256;

/// Maximum number of options that can be set in an agent's session.
pub const AGENT_OPTIONS: usize = 32;

/// Maximum number of options in an agent's question; more are left out.
pub const INPUT_OPTIONS: usize = 32;

/// Maximum length of the id of such an option, in bytes; an option with a longer id is left out. A longer name is cut.
pub const INPUT_OPTION_BYTES: usize = 256;

/// Maximum number of foreground jobs per connection. They do not wait for slots, so nothing else bounds them.
pub const FOREGROUND_JOBS: usize = 256;

/// Maximum number of tasks that the calls of one connection wait for, each counted once per call; another `task.block`,
/// `task.cancel`, `task.clear` or `session.end` that would have to wait is refused with `too_many_requests`. A single
/// call may wait for any number.
pub const WAITED_TASKS: usize = 50_000;

/// Maximum number of bytes that one `task.write` accepts (after decoding).
pub const WRITE_BYTES: usize = 256 * 1024;

/// Maximum number of bytes that clients have written and tasks have not read, of all tasks together; a `task.write`
/// beyond that is refused with `too_many_requests`.
pub const UNREAD_INPUT_BYTES: usize = 16 * 1024 * 1024;

/// Maximum number of clients viewing one terminal; another one is refused with `too_many_requests`.
pub const TERMINAL_VIEWERS: usize = 32;

/// Number of bytes at the start of an output that are kept when it exceeds its limit.
pub const OUTPUT_HEAD_BYTES: u64 = 64 * 1024;

/// Maximum number of descriptors that travel with one line.
pub const FDS_PER_FRAME: usize = 8;

/// Maximum number of steps of an agent's plan that are kept. Further ones are left out.
pub const PLAN_STEPS: usize = 32;

/// Maximum length of a step of an agent's plan, in characters. The rest is cut off.
pub const PLAN_STEP_CHARS: usize = 200;

/// Maximum length of the currency of an agent's cost, in bytes. A longer one is cut off.
pub const CURRENCY_BYTES: usize = 16;

/// Maximum number of tasks that one call of `task.usage` measures.
pub const USAGES: usize = 256;

/// Maximum number of subscriptions per connection.
pub const SUBSCRIPTIONS: usize = 64;

/// Approximate maximum size of a page of `task.list`, in bytes; it always has at least one task.
pub const LIST_PAGE_BYTES: usize = 1024 * 1024;

/// Maximum number of tasks on a page of `task.list`.
pub const LIST_PAGE: usize = 1000;

/// Number of tasks on a page of `task.list` when the request has no `limit`.
pub const LIST_PAGE_DEFAULT: usize = 100;

/// How long `task.block` waits when the request has no `timeout_ms`, in milliseconds.
pub const BLOCK_TIMEOUT_MS: u64 = 60_000;

/// Minimum length of a task id's prefix, in characters.
pub const ID_PREFIX_CHARS: usize = 4;

/// Maximum length of a description, session key, channel, tag or idempotency key, in bytes.
pub const LABEL_BYTES: usize = 4096;

/// Maximum number of tags of one task.
pub const TAGS: usize = 64;

/// Maximum time limit, grace period or timeout in milliseconds: 100 years, with leap days, as in `100 years` when it is
/// parsed.
pub const DURATION_MS: u64 = 36_525 * 24 * 3600 * 1000;

/// Maximum number of items in an answer to `inbox.read`.
pub const INBOX_PAGE: usize = 1000;

/// Maximum number of inboxes in an answer to `inbox.list`.
pub const INBOXES_PAGE: usize = 100;

/// Number of items in an answer to `inbox.read` when the request has no `limit`.
pub const INBOX_PAGE_DEFAULT: usize = 100;

/// Approximate maximum size of an answer to `inbox.read`, in bytes; it always has at least one item.
pub const INBOX_PAGE_BYTES: usize = 1024 * 1024;

/// Maximum number of waiting `inbox.read` calls per connection; another one that would wait is refused with
/// `too_many_requests`.
pub const INBOX_WAITS: usize = 64;

/// Maximum number of items in all inboxes together; beyond it the oldest is dropped. Also the maximum number of inboxes
/// that remember having lost items; beyond it the inbox with the oldest loss forgets it.
pub const INBOXES_ITEMS: usize = 100_000;

/// Maximum size of the texts of the tasks in all inboxes together, in bytes; beyond it the oldest items are dropped.
/// Results are not counted: they are read from their files.
pub const INBOXES_BYTES: usize = 64 * 1024 * 1024;

/// Maximum number of parent sessions that one connection owns.
pub const OWNED_SESSIONS: usize = 64;

/// How long connecting may take, and how long the first answer on the connection may take.
pub const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// Maximum number of conditions on other tasks that one task has.
pub const AFTER: usize = 1000;

/// Maximum number of groups.
pub const GROUPS: usize = 1000;

/// Maximum length of a group's name, in bytes.
pub const GROUP_BYTES: usize = 64;

/// Maximum number of slots of a group.
pub const GROUP_SLOTS: u32 = 100_000;

/// Maximum number of retries of a task.
pub const RETRIES: u32 = 1000;

/// Number of a task's attempts that are shown: the last ones.
pub const ATTEMPTS: usize = 16;

/// Maximum length of a readiness condition, in bytes.
pub const READY_BYTES: usize = 4096;

/// Number of bytes of an output line that are searched: the first ones.
pub const LINE_SEARCH_BYTES: usize = 64 * 1024;

/// Maximum number of commands in one part of a batch.
pub const BATCH_PART: usize = 10_000;

/// Maximum number of tasks in one batch.
pub const BATCH_TASKS: usize = 1_000_000;

/// Maximum number of tasks that one call submits again.
pub const RERUNS: usize = 10_000;
