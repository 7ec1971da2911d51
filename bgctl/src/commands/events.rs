//! `events`: what happens, one JSON object a line, until it is interrupted.

use bgd_shared::event::News;
use bgd_shared::request::{EventsSubscribe, SubscribeParams};

use crate::cli::EventsArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;

/// Prints events.
pub fn run(args: EventsArgs, context: &mut Context) -> Result<Code, Failure> {
    let mut params = SubscribeParams { session: args.session, ids: args.tasks, since: args.since };
    context.call::<EventsSubscribe>(&params)?;
    loop {
        let news = context.client()?.next_news()?.news;
        if let News::Gap(gap) = &news
            && gap.ended
        {
            // We read too slowly and the subscription is over. The history may still have what was
            // missed; what it has not, the daemon tells as a gap of its own.
            params.since = Some(gap.from.saturating_sub(1));
            context.call::<EventsSubscribe>(&params)?;
            continue;
        }
        context.print_json(&news)?;
        // A reader of a pipe wants each event when it happens.
        context.flush()?;
    }
}
