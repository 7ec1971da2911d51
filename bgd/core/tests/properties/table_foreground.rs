//! Tables of inputs that concern foreground jobs, in every state.

use bgd_core::{Command, Core};

use super::support::id;
use super::{table, table_agent};

/// The states are those of the tables of all tasks and of agents. `&` marks a job in the background; without it, the
/// job is in the foreground or has ended. The other marks are the same.
const PROCESSES: &str = "
input             | spwn   | sp-x   | run    | stop   | st-x   | kill   | ki-x   | done   | ling
started           | run    | stop+  | run    | stop   | st-x   | kill   | ki-x   | done   | ling
start failed      | fail   | canc   | run    | stop   | st-x   | kill   | ki-x   | done   | ling
exited 0          | spwn   | sp-x   | done   | canc   | st-x   | canc   | ki-x   | done   | ling
exited 0, others  | spwn   | sp-x   | ling   | st-x   | st-x   | ki-x   | ki-x   | done   | ling
tree empty        | spwn   | sp-x   | run    | stop   | canc   | kill   | canc   | done   | done
gave up           | spwn   | sp-x   | run    | stop   | st-x   | li-s   | li-s   | done   | ling
detach            | spwn&  | sp-x&  | run&   | stop&  | st-x&  | kill&  | ki-x&  | done!  | ling!
detach, direct    | spwn!  | sp-x!  | run!   | stop!  | st-x!  | kill!  | ki-x!  | done!  | ling!
another detaches  | spwn!  | sp-x!  | run!   | stop!  | st-x!  | kill!  | ki-x!  | done!  | ling!
adopt             | spwn   | sp-x   | run    | stop   | st-x   | kill   | ki-x   | done   | ling
disconnected      | sp-x&  | sp-x&  | stop&+ | stop&+ | st-x&+ | kill&  | ki-x&  | done   | ling
another is gone   | spwn   | sp-x   | run    | stop   | st-x   | kill   | ki-x   | done   | ling
cancel            | sp-x   | sp-x   | stop+  | stop+  | st-x+  | kill   | ki-x   | done   | li-x+
cancel, SIGKILL   | sp-x   | sp-x   | kill+  | kill+  | ki-x+  | kill   | ki-x   | done   | li-k+
clear             | spwn!  | sp-x!  | run!   | stop!  | st-x!  | kill!  | ki-x!  | gone   | li-x+
clear all         | spwn   | sp-x   | run    | stop   | st-x   | kill   | ki-x   | gone   | ling
clear active too  | sp-x   | sp-x   | stop+  | stop+  | st-x+  | kill   | ki-x   | gone   | li-x+
signal            | spwn!  | sp-x!  | run+   | stop+  | st-x!  | kill+  | ki-x!  | done!  | ling!
end of session    | sp-x   | sp-x   | stop+  | stop+  | st-x+  | kill   | ki-x   | gone   | li-x+
shutdown          | sp-x   | sp-x   | stop+  | stop+  | st-x+  | kill   | ki-x   | done   | li-x+
fewer slots       | spwn   | sp-x   | run    | stop   | st-x   | kill   | ki-x   | done   | ling
deadline          | spwn   | sp-x   | stop+  | kill+  | ki-x+  | kill   | ki-x   | done   | ling
";

const AGENTS: &str = "
input             | spwn   | sp-x   | run    | asks   | mute   | stop   | kill   | done   | fail   | canc   | way    | more
started           | run    | stop+  | run    | asks   | mute   | stop   | kill   | done   | fail   | canc   | more&  | more&
refused           | fail   | canc   | run    | asks   | mute   | stop   | kill   | done   | fail   | canc   | done!  | more&
turn ended        | spwn   | sp-x   | done   | done   | done   | canc   | canc   | done   | fail   | canc   | way    | done
turn failed       | spwn   | sp-x   | fail   | fail   | fail   | canc   | canc   | done   | fail   | canc   | way    | fail
detach            | spwn&  | sp-x&  | run&   | asks&  | mute&  | stop&  | kill&  | done!  | fail!  | canc!  | way!   | more&!
detach, direct    | spwn!  | sp-x!  | run!   | asks!  | mute!  | stop!  | kill!  | done!  | fail!  | canc!  | way!   | more&!
another detaches  | spwn!  | sp-x!  | run!   | asks!  | mute!  | stop!  | kill!  | done!  | fail!  | canc!  | way!   | more&!
adopt             | spwn   | sp-x   | run    | asks   | mute   | stop   | kill   | done   | fail   | canc   | way    | more&
disconnected      | sp-x&+ | sp-x&+ | stop&+ | stop&* | stop&+ | stop&+ | kill&  | done   | fail   | canc   | way    | more&
another is gone   | spwn   | sp-x   | run    | asks   | mute   | stop   | kill   | done   | fail   | canc   | way    | more&
resume            | spwn!  | sp-x!  | run!   | asks!  | mute!  | stop!  | kill!  | way>   | fail!  | canc!  | way!   | more&!
answer            | spwn!  | sp-x!  | run!   | run?   | mute!  | stop!  | kill!  | done!  | fail!  | canc!  | way!   | more&!
cancel            | sp-x+  | sp-x+  | stop+  | stop*  | stop+  | stop+  | kill   | done   | fail   | canc   | wy-x+  | stop&+
clear             | spwn!  | sp-x!  | run!   | asks!  | mute!  | stop!  | kill!  | gone   | gone   | gone   | way!   | more&!
clear active too  | sp-x+  | sp-x+  | stop+  | stop*  | stop+  | stop+  | kill   | gone   | gone   | gone   | wy-x+  | stop&+
end of session    | sp-x+  | sp-x+  | stop+  | stop*  | stop+  | stop+  | kill   | gone   | gone   | gone   | wy-x+  | stop&+
shutdown          | sp-x+  | sp-x+  | stop+  | stop*  | stop+  | stop+  | kill   | done   | fail   | canc   | wy-x+  | stop&+
silence           | spwn   | sp-x   | mute   | run?   | mute   | stop   | kill   | done   | fail   | canc   | way    | more&
time limit        | spwn   | sp-x   | stop+  | stop*  | stop+  | kill+  | kill   | done   | fail   | canc   | way    | stop&+
";

/// Appends `&` to the word if the task is active and no client shows it.
fn placed(core: &Core, word: &str) -> String {
    let in_background =
        core.get(&id(1).into()).is_ok_and(|task| task.foreground.is_none() && task.status().is_active());
    format!("{word}{}", if in_background { "&" } else { "" })
}

/// Turns the task under test into a foreground job.
fn shown(mut task: Command, input: &str) -> Command {
    task.foreground = true;
    task.spec.direct = input == "detach, direct";
    task
}

#[test]
fn every_foreground_job_state_handles_relevant_inputs() {
    table::compare(PROCESSES, |state, input| {
        let mut desk = table::desk_in(state, shown(table::looked_at(), input));
        let effects = table::happen(&mut desk, input);
        placed(&desk.core, table::word(&desk.core)) + table::mark(&effects)
    });
}

#[test]
fn every_foreground_agent_state_handles_relevant_inputs() {
    table::compare(AGENTS, |state, input| {
        let mut desk = table_agent::desk_in(state, shown(table_agent::looked_at(), input));
        let effects = table_agent::happen(&mut desk, input);
        placed(&desk.core, table_agent::word_of_agent(&desk.core)) + &table_agent::mark(&effects)
    });
}
