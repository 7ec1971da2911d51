//! Limits of the protocol that both sides know. What a daemon allows beyond these is in its
//! configuration and in the answer to `hello`.

use std::time::Duration;

/// The longest request line in bytes, newline included, that a daemon takes without configuration.
pub const FRAME_BYTES: usize = 1024 * 1024;

/// The longest environment in bytes: Linux gives no program more than 6 MiB of arguments and environment.
pub const ENV_BYTES: usize = 6 * 1024 * 1024;

/// The longest environment in bytes that clients write into a line. A longer one travels in a memory file.
pub const ENV_INLINE_BYTES: usize = 64 * 1024;

/// The longest line in bytes that a client takes from a daemon.
///
/// Answers may be longer than requests: a `task.block` on many ids names every task.
pub const ANSWER_BYTES: usize = 256 * 1024 * 1024;

/// The most bytes of output that one `task.output` returns (before encoding).
pub const OUTPUT_CHUNK_BYTES: u64 = 256 * 1024;

/// The most bytes of output that `task.result` returns for a process task: the last ones.
pub const RESULT_BYTES: u64 = 256 * 1024;

/// The most bytes of an agent's answer that are kept, and that `task.result` returns: the last ones.
pub const AGENT_RESULT_BYTES: u64 = 1024 * 1024;

/// The bytes of a prompt that lists, events and answers show: the first ones. `task.get` shows all of it.
pub const PROMPT_BYTES: usize = 1024;

/// The longest id of an agent's session, in bytes.
pub const AGENT_SESSION_BYTES: usize = 1024;

/// The longest mode or model of an agent, and name or value of one of its options, in bytes.
pub const AGENT_SETTING_BYTES: usize = 256;

/// The most options that are set in an agent's session.
pub const AGENT_OPTIONS: usize = 32;

/// The most answers that a question of an agent may offer; more are left out.
pub const INPUT_OPTIONS: usize = 32;

/// The longest id of such an answer, in bytes; one with a longer id is left out. A longer name is cut.
pub const INPUT_OPTION_BYTES: usize = 256;

/// The most foreground jobs of one connection. They wait for no slot, so this is what bounds them.
pub const FOREGROUND_JOBS: usize = 256;

/// The most bytes that one `task.write` takes (after decoding).
pub const WRITE_BYTES: usize = 256 * 1024;

/// The most clients that one terminal is shown to; one more is refused with `too_many_requests`.
pub const TERMINAL_VIEWERS: usize = 32;

/// The bytes at the start of an output that are kept when it grows past its limit.
pub const OUTPUT_HEAD_BYTES: u64 = 64 * 1024;

/// The most descriptors that may travel with one line.
pub const FDS_PER_FRAME: usize = 8;

/// The most subscriptions of one connection.
pub const SUBSCRIPTIONS: usize = 64;

/// The most bytes that a page of `task.list` has, about; at least one task is on it.
pub const LIST_PAGE_BYTES: usize = 1024 * 1024;

/// The most tasks on one page of `task.list`.
pub const LIST_PAGE: usize = 1000;

/// The tasks on one page of `task.list` when the request names no `limit`.
pub const LIST_PAGE_DEFAULT: usize = 100;

/// How long `task.block` waits when the request names no `timeout_ms`, in milliseconds.
pub const BLOCK_TIMEOUT_MS: u64 = 60_000;

/// The shortest prefix of a task id that is taken for the id, in characters.
pub const ID_PREFIX_CHARS: usize = 4;

/// The longest description, session key, channel, tag or idempotency key, in bytes.
pub const LABEL_BYTES: usize = 4096;

/// The most tags of one task.
pub const TAGS: usize = 64;

/// The longest time limit, grace or timeout in milliseconds: about 100 years.
pub const DURATION_MS: u64 = 100 * 365 * 24 * 3600 * 1000;

/// The most items in one answer of `inbox.read`.
pub const INBOX_PAGE: usize = 1000;

/// The most inboxes in one answer of `inbox.list`.
pub const INBOXES_PAGE: usize = 100;

/// The items in an answer of `inbox.read` when the request names no `limit`.
pub const INBOX_PAGE_DEFAULT: usize = 100;

/// The most bytes that an answer of `inbox.read` has, about; at least one item is in it.
pub const INBOX_PAGE_BYTES: usize = 1024 * 1024;

/// The most items in all inboxes together; beyond it the oldest is dropped. So many inboxes remember that
/// they have lost any; beyond it the one that forgets it is the one whose loss is the oldest.
pub const INBOXES_ITEMS: usize = 100_000;

/// The most bytes that the texts of the tasks in all inboxes have together; beyond it the oldest items are
/// dropped. The results are not counted: they are read from their files.
pub const INBOXES_BYTES: usize = 64 * 1024 * 1024;

/// The most parent sessions that one connection may own.
pub const OWNED_SESSIONS: usize = 64;

/// How long the first answer of a connection may take, the connecting included.
pub const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// The most conditions on other tasks that one task may have.
pub const AFTER: usize = 1000;

/// The most groups.
pub const GROUPS: usize = 1000;

/// The longest name of a group, in bytes.
pub const GROUP_BYTES: usize = 64;

/// The most slots of a group.
pub const GROUP_SLOTS: u32 = 100_000;

/// The most times that a task is tried again.
pub const RETRIES: u32 = 1000;

/// The attempts of a task that are shown: the last ones.
pub const ATTEMPTS: usize = 16;

/// The longest text that says when a task is ready, in bytes.
pub const READY_BYTES: usize = 4096;

/// The bytes of a line of output that are searched: the first ones.
pub const LINE_SEARCH_BYTES: usize = 64 * 1024;

/// Commands in one part of a batch.
pub const BATCH_PART: usize = 10_000;

/// Tasks of one batch.
pub const BATCH_TASKS: usize = 1_000_000;

/// Tasks that one call submits again.
pub const RERUNS: usize = 10_000;
