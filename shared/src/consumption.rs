//! Agents' consumption of their models, and their plans.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An amount of money or of another unit, 0 to 1,000,000, with a resolution of one billionth. A number on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(u64);

/// Billionths per unit.
const PARTS: f64 = 1e9;

impl Amount {
    /// The largest amount: the numbers up to it can be written as JSON without loss.
    pub const MAX: Self = Self(1_000_000 * 1_000_000_000);

    /// Rounds a number of units; a larger number becomes the largest amount. `None` if it is negative or not a number.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    pub fn of(units: f64) -> Option<Self> {
        (units >= 0.0).then(|| Self((units * PARTS).round() as u64).min(Self::MAX))
    }

    /// Returns the number of units.
    #[allow(clippy::cast_precision_loss, reason = "no amount has more than 50 bits")]
    pub fn units(self) -> f64 {
        self.0 as f64 / PARTS
    }

    /// Adds an amount. The sum is at most the largest amount.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0)).min(Self::MAX)
    }

    /// Subtracts a smaller amount. `None` if the other is larger.
    pub fn minus(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.units())
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let units = f64::deserialize(deserializer)?;
        Self::of(units).ok_or_else(|| serde::de::Error::custom("an amount is not negative"))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Amount {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        f64::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        f64::json_schema(generator)
    }

    fn inline_schema() -> bool {
        true
    }
}

/// Cost of a model's work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cost {
    /// The amount, in units of `currency`, 0 to 1,000,000, with a resolution of one billionth.
    pub amount: Amount,
    /// ISO 4217 code of the currency, such as `USD`, or another unit, such as `credits`: as reported by the agent, at
    /// most 16 bytes.
    pub currency: String,
}

/// Consumption of the model by an agent for a task, in all of the task's runs and attempts. Values that the agent does
/// not report are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentUsage {
    /// Tokens that the model has read, as the agent counts them: most don't count cached tokens. Some agents report
    /// this only at the end of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens that the model has written, including those of its thoughts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Tokens read from or written to a cache, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Tokens in the context of the conversation now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// Capacity of this context in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_size: Option<u64>,
    /// The cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

impl AgentUsage {
    /// Returns how full the context is, in percent.
    pub fn context_percent(&self) -> Option<u64> {
        self.context_tokens?.saturating_mul(100).checked_div(self.context_size?)
    }

    /// Returns the tokens read and written, including cached ones. `None` if the agent does not report them.
    pub fn tokens(&self) -> Option<u64> {
        let counts = [self.input_tokens, self.output_tokens, self.cached_tokens];
        let known = counts.into_iter().flatten().reduce(u64::saturating_add);
        known.filter(|_| self.input_tokens.is_some() || self.output_tokens.is_some())
    }
}

/// Progress of a step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// Not started.
    Pending,
    /// In progress.
    InProgress,
    /// Done.
    Completed,
    /// Abandoned.
    Cancelled,
    /// A status added by a newer daemon.
    #[serde(other)]
    Unknown,
}

impl StepStatus {
    /// Returns the status with this name on the wire. Agents with a protocol of their own use the same names.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Pending, Self::InProgress, Self::Completed, Self::Cancelled]
            .into_iter()
            .find(|status| status.as_str() == name)
    }

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }
}

/// A step of an agent's plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlanStep {
    /// The work to do: one line, truncated to 200 characters.
    pub text: String,
    /// Progress of the step.
    pub status: StepStatus,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_decimal_numbers() {
        for text in ["0.00014", "12.5", "0.0", "999999.999999999", "1000000.0"] {
            let amount: Amount = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&amount).unwrap(), text);
        }
        assert_eq!(serde_json::from_str::<Amount>("3").unwrap().units().to_bits(), 3f64.to_bits());
        assert_eq!((Amount::of(-0.1), Amount::of(f64::NAN)), (None, None));
        assert_eq!(Amount::of(f64::INFINITY), Some(Amount::MAX));
        assert_eq!(Amount::of(1e-10), Some(Amount::default()));
        let [tenth, fifth] = [0.1, 0.2].map(|units| Amount::of(units).unwrap());
        assert_eq!(tenth.plus(fifth), Amount::of(0.3).unwrap());
        assert_eq!((fifth.minus(tenth), tenth.minus(fifth)), (Some(tenth), None));
        assert_eq!(Amount::MAX.plus(tenth), Amount::MAX);
        assert!(serde_json::from_str::<Amount>("-1").is_err());
    }

    #[test]
    fn status_of_a_step_of_a_newer_daemon_is_unknown() {
        let step: PlanStep = crate::strict::from_str(r#"{"text":"read","status":"blocked"}"#).unwrap();
        assert_eq!(step.status, StepStatus::Unknown);
        assert_eq!(StepStatus::named("unknown"), None, "it is no status of an agent");
    }

    #[test]
    fn only_known_usage_is_counted() {
        let usage = AgentUsage { cached_tokens: Some(5), context_tokens: Some(5), ..AgentUsage::default() };
        assert_eq!((usage.tokens(), usage.context_percent()), (None, None));
        let usage = AgentUsage { input_tokens: Some(10), context_size: Some(20), ..usage };
        assert_eq!((usage.tokens(), usage.context_percent()), (Some(15), Some(25)));
        assert_eq!(AgentUsage { context_size: Some(0), ..usage }.context_percent(), None);
    }
}
