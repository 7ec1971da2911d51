//! Agents' reports of tokens and costs. Costs are those of the whole session; tokens come with the answer to a prompt,
//! in a field that the protocol has not settled yet, or in fields of the agent's own.

use agent_client_protocol::v1::schema::UsageUpdate;
use bgd_shared::consumption::{Amount, Cost};
use bgd_shared::limits::CURRENCY_BYTES;
use bgd_shared::text::beginning;
use serde_json::Value;

use crate::core::{Context, CostScope, Report, Tokens};

/// Translates a `usage_update`.
pub fn of_update(update: &UsageUpdate) -> Report {
    let cost = update.cost.as_ref().and_then(|cost| {
        let currency = beginning(&cost.currency, CURRENCY_BYTES).to_owned();
        Some((CostScope::Session, Cost { amount: Amount::of(cost.amount)?, currency }))
    });
    let context = Context { tokens: update.used, size: Some(update.size).filter(|size| *size > 0) };
    Report { tokens: None, context: Some(context), cost }
}

/// Extracts the tokens of a turn from the answer to its prompt.
pub fn of_answer(answer: &Value) -> Option<Tokens> {
    of_usage(&answer["usage"]).or_else(|| of_quota(&answer["_meta"]["quota"]["token_count"]))
}

fn of_usage(usage: &Value) -> Option<Tokens> {
    let count = |name: &str| usage[name].as_u64();
    let (input, output) = (count("inputTokens")?, count("outputTokens")?);
    let cached = [count("cachedReadTokens"), count("cachedWriteTokens")].into_iter().flatten();
    let cached = cached.fold(0, u64::saturating_add);
    // Some agents include thoughts in the output; then the sum of all is more than the total.
    let thoughts = count("thoughtTokens").unwrap_or(0);
    let all = [input, output, cached, thoughts].into_iter().fold(0, u64::saturating_add);
    let is_apart = count("totalTokens").is_none_or(|total| total >= all);
    let output = if is_apart { output.saturating_add(thoughts) } else { output };
    Some(Tokens { input, output, cached })
}

/// Parses the fields of gemini-cli.
fn of_quota(count: &Value) -> Option<Tokens> {
    let (input, output) = (count["input_tokens"].as_u64()?, count["output_tokens"].as_u64()?);
    Some(Tokens { input, output, cached: 0 })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn r160_turn_tokens_are_read_in_all_known_formats() {
        let of = |input, output, cached| Some(Tokens { input, output, cached });
        for (answer, tokens) in [
            (json!({"usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}}), of(10, 5, 0)),
            (
                json!({"usage": {"inputTokens": 10, "outputTokens": 5, "thoughtTokens": 3, "totalTokens": 18}}),
                of(10, 8, 0),
            ),
            (
                json!({"usage": {"inputTokens": 10, "outputTokens": 5, "thoughtTokens": 3, "totalTokens": 15}}),
                of(10, 5, 0),
            ),
            (
                json!({"usage": {"inputTokens": 1, "outputTokens": 2, "cachedReadTokens": 3, "cachedWriteTokens": 4}}),
                of(1, 2, 7),
            ),
            (
                json!({"_meta": {"quota": {"token_count": {"input_tokens": 10, "output_tokens": 5}}}}),
                of(10, 5, 0),
            ),
            (json!({"usage": null, "_meta": {"quota": {"token_count": null}}}), None),
            (json!({"usage": {"inputTokens": -1, "outputTokens": 5}}), None),
            (
                json!({"usage": {"inputTokens": u64::MAX, "outputTokens": u64::MAX, "thoughtTokens": 1}}),
                of(u64::MAX, u64::MAX, 0),
            ),
            (json!([]), None),
        ] {
            assert_eq!(of_answer(&answer), tokens, "{answer}");
        }
    }

    #[test]
    fn r160_invalid_cost_and_context_values_are_ignored() {
        let report = |update: Value| of_update(&serde_json::from_value(update).unwrap());
        let known = report(json!({"used": 5, "size": 10, "cost": {"amount": 0.5, "currency": "USD"}}));
        assert_eq!(known.context, Some(Context { tokens: 5, size: Some(10) }));
        let cost = Cost { amount: Amount::of(0.5).unwrap(), currency: "USD".into() };
        assert_eq!(known.cost, Some((CostScope::Session, cost)));
        let odd = report(json!({"used": 5, "size": 0, "cost": {"amount": -1, "currency": "USD"}}));
        assert_eq!((odd.context, odd.cost), (Some(Context { tokens: 5, size: None }), None));
        let long = report(json!({"used": 5, "size": 0, "cost": {"amount": 1, "currency": "x".repeat(99)}}));
        assert_eq!(long.cost.unwrap().1.currency.len(), CURRENCY_BYTES);
    }
}
