//! The model consumption of agents: reports within a run, added up over the runs of a task.

use bgd_shared::consumption::{AgentUsage, Amount, Cost};
use serde::{Deserialize, Serialize};

/// Numbers of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Tokens read by the model.
    pub input: u64,
    /// Tokens written by the model.
    pub output: u64,
    /// Tokens read from or written to a cache.
    pub cached: u64,
}

impl Tokens {
    fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            cached: self.cached.saturating_add(other.cached),
        }
    }
}

/// The context of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    pub tokens: u64,
    /// How many tokens it has room for, if known.
    pub size: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CostScope {
    /// This run so far.
    Run,
    /// The conversation so far, across runs. Some agents start over with each process.
    Session,
}

/// An agent's report of its consumption. Missing values are unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Tokens in this run so far.
    pub tokens: Option<Tokens>,
    /// The current context.
    pub context: Option<Context>,
    /// The cost so far, and what it covers.
    pub cost: Option<(CostScope, Cost)>,
}

impl Report {
    /// Reports whether it has no values.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Merges a later report of the same process into this one.
    pub fn update(&mut self, later: &Self) {
        let Self { tokens, context, cost } = later;
        self.tokens = tokens.or(self.tokens);
        if let Some(context) = context {
            let size = context.size.or_else(|| self.context?.size);
            self.context = Some(Context { size, ..*context });
        }
        if cost.is_some() {
            self.cost.clone_from(cost);
        }
    }
}

/// An agent's consumption in the runs of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumed {
    /// Tokens of earlier runs, and of this run.
    tokens: Option<[Tokens; 2]>,
    context: Option<Context>,
    cost: Option<Spending>,
}

/// The spending in one currency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Spending {
    currency: Box<str>,
    earlier: Amount,
    run: Amount,
    /// The last reported cost of the conversation.
    session: Amount,
}

impl Consumed {
    /// Begins another run. In a new conversation, the cost starts at 0.
    pub fn begin_run(&mut self, is_new_session: bool) {
        if let Some([earlier, run]) = &mut self.tokens {
            *earlier = earlier.plus(std::mem::take(run));
        }
        if let Some(cost) = &mut self.cost {
            cost.earlier = cost.earlier.plus(std::mem::take(&mut cost.run));
            if is_new_session {
                cost.session = Amount::default();
            }
        }
        if is_new_session {
            self.context = None;
        }
    }

    /// Records a report of this run.
    pub fn take(&mut self, report: &Report) {
        if let Some(tokens) = report.tokens {
            self.tokens.get_or_insert_default()[1] = tokens;
        }
        if let Some(context) = report.context {
            let size = context.size.or_else(|| self.context?.size);
            self.context = Some(Context { size, ..context });
        }
        if let Some((covers, cost)) = &report.cost {
            self.pay(*covers, cost);
        }
    }

    fn pay(&mut self, covers: CostScope, cost: &Cost) {
        // Amounts in two currencies can't be added, so the latest one counts.
        let same = self.cost.take().filter(|spent| *spent.currency == *cost.currency);
        let spent = self.cost.insert(same.unwrap_or_else(|| Spending {
            currency: cost.currency.as_str().into(),
            earlier: Amount::default(),
            run: Amount::default(),
            session: Amount::default(),
        }));
        match covers {
            CostScope::Run => spent.run = cost.amount,
            CostScope::Session => {
                // The amount is below the last one: the agent was restarted and has started over.
                let more = cost.amount.minus(spent.session).unwrap_or(cost.amount);
                spent.run = spent.run.plus(more);
                spent.session = cost.amount;
            }
        }
    }

    /// Returns the sum of all runs, in its wire form.
    pub fn total(&self) -> AgentUsage {
        let tokens = self.tokens.map(|[earlier, run]| earlier.plus(run));
        let cost = self.cost.as_ref();
        AgentUsage {
            input_tokens: tokens.map(|tokens| tokens.input),
            output_tokens: tokens.map(|tokens| tokens.output),
            cached_tokens: tokens.map(|tokens| tokens.cached).filter(|cached| *cached > 0),
            context_tokens: self.context.map(|context| context.tokens),
            context_size: self.context.and_then(|context| context.size),
            cost: cost.map(|spent| Cost {
                amount: spent.earlier.plus(spent.run),
                currency: spent.currency.to_string(),
            }),
        }
    }

    /// Returns the size of its texts.
    pub fn text_bytes(&self) -> usize {
        self.cost.as_ref().map_or(0, |spent| spent.currency.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(covers: CostScope, units: f64, currency: &str) -> Report {
        let cost = Cost { amount: Amount::of(units).unwrap(), currency: currency.to_owned() };
        Report { cost: Some((covers, cost)), ..Report::default() }
    }

    fn spent(consumed: &Consumed) -> Option<(f64, String)> {
        consumed.total().cost.map(|cost| (cost.amount.units(), cost.currency))
    }

    #[test]
    fn r160_tokens_add_up_over_runs() {
        let tokens = |input, output, cached| Report {
            tokens: Some(Tokens { input, output, cached }),
            ..Report::default()
        };
        let mut consumed = Consumed::default();
        consumed.begin_run(true);
        assert_eq!(consumed.total(), AgentUsage::default());
        consumed.take(&tokens(5, 1, 0));
        consumed.take(&tokens(10, 3, 0));
        consumed.begin_run(false);
        let total = consumed.total();
        assert_eq!((total.input_tokens, total.output_tokens, total.cached_tokens), (Some(10), Some(3), None));
        consumed.take(&tokens(7, 2, 90));
        let total = consumed.total();
        assert_eq!(
            (total.input_tokens, total.output_tokens, total.cached_tokens),
            (Some(17), Some(5), Some(90))
        );
    }

    #[test]
    fn r160_session_cost_accumulates_across_agent_restarts() {
        let mut consumed = Consumed::default();
        for (units, sum) in [(0.5, 0.5), (0.75, 0.75)] {
            consumed.take(&cost(CostScope::Session, units, "USD"));
            assert_eq!(spent(&consumed), Some((sum, "USD".into())));
        }
        consumed.begin_run(false);
        consumed.take(&cost(CostScope::Session, 1.0, "USD"));
        assert_eq!(spent(&consumed), Some((1.0, "USD".into())), "it went on");
        consumed.begin_run(false);
        for (units, sum) in [(0.25, 1.25), (0.5, 1.5)] {
            consumed.take(&cost(CostScope::Session, units, "USD"));
            assert_eq!(spent(&consumed), Some((sum, "USD".into())), "the agent was started again");
        }
        consumed.begin_run(true);
        consumed.take(&cost(CostScope::Session, 2.0, "USD"));
        assert_eq!(spent(&consumed), Some((3.5, "USD".into())), "another conversation");
        consumed.take(&cost(CostScope::Session, 7.0, "credits"));
        assert_eq!(spent(&consumed), Some((7.0, "credits".into())), "what can't be added");
    }

    #[test]
    fn r160_run_costs_add_up() {
        let mut consumed = Consumed::default();
        consumed.take(&cost(CostScope::Run, 0.5, "USD"));
        consumed.take(&cost(CostScope::Run, 0.25, "USD"));
        consumed.begin_run(false);
        consumed.take(&cost(CostScope::Run, 0.125, "USD"));
        assert_eq!(spent(&consumed), Some((0.375, "USD".into())));
    }

    #[test]
    fn r160_context_size_is_kept_within_a_conversation() {
        let context = |tokens, size| Report { context: Some(Context { tokens, size }), ..Report::default() };
        let mut consumed = Consumed::default();
        consumed.take(&context(10, Some(100)));
        consumed.take(&context(20, None));
        let total = consumed.total();
        assert_eq!((total.context_tokens, total.context_size), (Some(20), Some(100)));
        consumed.begin_run(true);
        assert_eq!(consumed.total().context_tokens, None, "another conversation");
    }

    #[test]
    fn r160_merged_reports_equal_single_reports() {
        let (few, many) =
            (Tokens { input: 1, ..Tokens::default() }, Tokens { input: 9, ..Tokens::default() });
        let context = |tokens, size| Report { context: Some(Context { tokens, size }), ..Report::default() };
        let tokens = |tokens| Report { tokens: Some(tokens), ..Report::default() };
        let reports = [
            tokens(few),
            cost(CostScope::Session, 0.5, "USD"),
            context(7, Some(100)),
            cost(CostScope::Session, 0.75, "USD"),
            context(8, None),
            tokens(many),
            Report::default(),
        ];
        let (mut one_by_one, mut together, mut all) =
            (Consumed::default(), Consumed::default(), Report::default());
        for report in &reports {
            one_by_one.take(report);
            all.update(report);
        }
        together.take(&all);
        assert_eq!(together, one_by_one);
    }
}
