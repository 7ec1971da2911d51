//! The choices that a session offers, and the values set in it. Sends nothing to the agent; [`super::settings`] does
//! that.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use bgd_shared::agent::{Permissions, Setting};
use bgd_shared::error::ErrorKind;
use bgd_shared::mutex::Mutex;
use bgd_shared::text::truncated_to_bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agents::Settings;
use crate::core::Refusal;

/// The modes in which agents are known to ask, best first: `default` of Claude Code, Gemini and Qwen, `read-only` of
/// Codex, `approve` of goose, `ask` of the protocol's own text, and the mode of Copilot. An entry with a `#` is
/// compared with the end of an id, the others with the whole id.
const STRICT: [&str; 5] = ["default", "read-only", "approve", "ask", "session-modes#agent"];

/// The maximum length of a reported list of choices, in bytes.
const OFFER_BYTES: usize = 500;

/// The dedicated methods for choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ChoiceMethod {
    Mode,
    Model,
}

impl ChoiceMethod {
    /// Returns the method's name, and the name of its parameter for the value.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Mode => ("session/set_mode", "modeId"),
            Self::Model => ("session/set_model", "modelId"),
        }
    }
}

/// How a choice is sent to an agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ChoiceSetter {
    /// By a dedicated method.
    Method(ChoiceMethod),
    /// As the option with this id.
    Option(String),
}

/// A choice that an agent offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    pub way: ChoiceSetter,
    /// The initial value of the session.
    pub current: Value,
    /// The ids to choose from; empty for a flag.
    values: Vec<String>,
}

impl Choice {
    fn of_list(way: ChoiceSetter, offer: &Value, list: &str, id: &str, current: &str) -> Option<Self> {
        let values = offer[list].as_array()?.iter().filter_map(|entry| entry[id].as_str());
        let values: Vec<String> = values.map(str::to_owned).collect();
        (!values.is_empty()).then(|| Self { way, current: offer[current].clone(), values })
    }

    fn of_option(option: &Value) -> Option<Self> {
        let id = option["id"].as_str()?.to_owned();
        let entries = option["options"].as_array().into_iter().flatten();
        // The entries may be grouped.
        let values = entries.flat_map(|entry| match entry["options"].as_array() {
            Some(group) => group.iter().collect(),
            None => vec![entry],
        });
        let values = values.filter_map(|entry| entry["value"].as_str().map(str::to_owned)).collect();
        Some(Self { way: ChoiceSetter::Option(id), current: option["currentValue"].clone(), values })
    }

    /// Returns the offered id that ranks best in [`STRICT`].
    fn strict(&self) -> Option<&str> {
        let ends = |value: &&String, end: &str| {
            let value = value.to_lowercase();
            value == end || end.contains('#') && value.ends_with(end)
        };
        STRICT.iter().find_map(|end| self.values.iter().find(|value| ends(value, end))).map(String::as_str)
    }

    /// Returns the value to choose, if the agent offers it.
    ///
    /// # Errors
    /// The agent does not offer it; the hint lists its offer.
    pub fn value(&self, what: &str, value: &str) -> Result<Value, Refusal> {
        if self.values.iter().any(|known| known == value) {
            return Ok(value.into());
        }
        let message = format!("the agent has no {what} {value:?}");
        Err(Refusal::new(ErrorKind::AgentUnavailable, message)
            .hint(format!("its {what} can be: {}", listed(&self.values))))
    }
}

/// The choices that the sessions of an agent offer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    pub modes: Option<Choice>,
    pub models: Option<Choice>,
    /// All options; modes and models may be among them.
    options: Vec<Choice>,
    /// The id of the option for the mode, even if a dedicated method is preferred for setting the mode.
    mode_option: Option<String>,
}

impl Offer {
    /// Parses the offer in the answer to `session/new` and similar requests.
    fn of(answer: &Value) -> Self {
        let options = || answer["configOptions"].as_array().into_iter().flatten();
        let of_category =
            |category: &str| Choice::of_option(options().find(|option| option["category"] == category)?);
        let by = ChoiceSetter::Method(ChoiceMethod::Mode);
        let modes = Choice::of_list(by, &answer["modes"], "availableModes", "id", "currentModeId");
        let by = ChoiceSetter::Method(ChoiceMethod::Model);
        Self {
            modes: modes.or_else(|| of_category("mode")),
            models: Choice::of_list(by, &answer["models"], "availableModels", "modelId", "currentModelId")
                .or_else(|| of_category("model")),
            options: options().filter_map(Choice::of_option).collect(),
            mode_option: of_category("mode").and_then(|choice| match choice.way {
                ChoiceSetter::Option(id) => Some(id),
                ChoiceSetter::Method(_) => None,
            }),
        }
    }

    /// Returns the choice that is set in this way.
    pub fn choice(&self, way: &ChoiceSetter) -> Option<&Choice> {
        [&self.modes, &self.models]
            .into_iter()
            .flatten()
            .chain(&self.options)
            .find(|choice| choice.way == *way)
    }

    /// Returns the position in the order of setting: the model first, as other choices may depend on it, the mode last.
    pub fn rank(&self, way: &ChoiceSetter) -> u8 {
        let is = |choice: &Option<Choice>| choice.as_ref().is_some_and(|choice| choice.way == *way);
        match (is(&self.models), is(&self.modes)) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        }
    }

    /// Converts a value to the type that this option accepts: the user who names it may not know whether it is a flag.
    pub fn fit(&self, way: &ChoiceSetter, value: &Setting) -> Value {
        let is_flag = self.choice(way).map(|choice| choice.values.is_empty());
        match (is_flag, value) {
            (Some(true), Setting::Text(text)) if text == "true" => true.into(),
            (Some(true), Setting::Text(text)) if text == "false" => false.into(),
            (Some(false), Setting::Flag(flag)) => flag.to_string().into(),
            (_, Setting::Text(text)) => text.as_str().into(),
            (_, Setting::Flag(flag)) => (*flag).into(),
        }
    }

    /// Returns the mode to set, if any, and a warning if none of the agent's modes is known to ask.
    ///
    /// # Errors
    /// The agent does not offer the named mode.
    pub fn mode(&self, settings: &Settings) -> Result<(Option<Value>, Option<String>), Refusal> {
        if let Some(mode) = &settings.named.mode {
            return choosable("mode", mode, self.modes.as_ref())?
                .value("mode", mode)
                .map(|mode| (Some(mode), None));
        }
        let Some(modes) = &self.modes else { return Ok((None, None)) };
        let is_named = self.mode_option.as_ref().is_some_and(|id| settings.named.config.contains_key(id));
        if is_named || settings.permissions == Permissions::Allow {
            return Ok((None, None));
        }
        if let Some(strict) = modes.strict() {
            return Ok((Some(strict.into()), None));
        }
        let warning = format!(
            "permissions = \"{}\" may have no effect: the agent is not known to ask in any of its modes ({}); \
             choose one with --mode, or `mode` in its configuration entry",
            settings.permissions.as_str(),
            listed(&modes.values)
        );
        Ok((None, Some(warning)))
    }
}

/// A session's offer, and the changes made in the session.
#[derive(Debug, Default)]
pub struct Setup {
    /// Shared by sessions with the same offer: an agent may have a thousand models.
    pub offer: Arc<Offer>,
    /// The initial values of changed settings.
    before: Mutex<BTreeMap<ChoiceSetter, Value>>,
}

/// A session's setup, as carried over an upgrade.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SetupState {
    offer: Offer,
    before: Vec<(ChoiceSetter, Value)>,
}

impl Setup {
    /// Parses the offer in the answer that opened a session. Shares the offer of the previous session if both are
    /// equal.
    pub fn of(answer: &Value, last: &Mutex<Arc<Self>>) -> Arc<Self> {
        let mut last = last.lock();
        Self::shared(Offer::of(answer), BTreeMap::new(), &mut last)
    }

    /// Restores a setup after an upgrade. Shares the offer of the previous session if both are equal.
    pub fn restore(state: SetupState, last: &mut Arc<Self>) -> Arc<Self> {
        let SetupState { offer, before } = state;
        Self::shared(offer, before.into_iter().collect(), last)
    }

    fn shared(offer: Offer, before: BTreeMap<ChoiceSetter, Value>, last: &mut Arc<Self>) -> Arc<Self> {
        let offer = Arc::new(offer);
        let offer = if last.offer == offer { Arc::clone(&last.offer) } else { offer };
        let setup = Arc::new(Self { offer, before: Mutex::new(before) });
        *last = Arc::clone(&setup);
        setup
    }

    pub fn state(&self) -> SetupState {
        let Self { offer, before: _ } = self;
        let before = self.before().iter().map(|(way, value)| (way.clone(), value.clone())).collect();
        SetupState { offer: Offer::clone(offer), before }
    }

    /// Returns the initial values of changed settings.
    pub fn before(&self) -> MutexGuard<'_, BTreeMap<ChoiceSetter, Value>> {
        // No panic can leave the map half changed, so poisoning does not matter.
        self.before.lock()
    }
}

/// Returns a choice that must exist.
///
/// # Errors
/// The agent does not offer it.
pub fn choosable<'a>(what: &str, value: &str, choice: Option<&'a Choice>) -> Result<&'a Choice, Refusal> {
    choice.ok_or_else(|| {
        let message = format!("the agent can't use the {what} {value:?}: it offers no choice");
        Refusal::new(ErrorKind::AgentUnavailable, message)
            .hint(format!("remove --{what}, and `{what}` in its configuration entry"))
    })
}

/// Describes the agent's offer, for a value that the agent did not accept; `None` if the offer is unknown.
pub fn offered(offer: &Offer, way: &ChoiceSetter) -> Option<String> {
    match (offer.choice(way), way) {
        (Some(choice), _) if choice.values.is_empty() => Some("it can be true or false".to_owned()),
        (Some(choice), _) => Some(format!("it can be: {}", listed(&choice.values))),
        (None, ChoiceSetter::Method(_)) => None,
        (None, ChoiceSetter::Option(_)) if offer.options.is_empty() => {
            Some("the agent has no options".to_owned())
        }
        (None, ChoiceSetter::Option(_)) => {
            let ids = offer.options.iter().filter_map(|choice| match &choice.way {
                ChoiceSetter::Option(id) => Some(id.clone()),
                ChoiceSetter::Method(_) => None,
            });
            Some(format!("its options are: {}", listed(&ids.collect::<Vec<_>>())))
        }
    }
}

/// Describes a choice for people.
pub fn shown(offer: &Offer, way: &ChoiceSetter, value: &Value) -> String {
    match (offer.rank(way), way) {
        (0, _) => format!("the model {value}"),
        (2, _) => format!("the mode {value}"),
        (_, ChoiceSetter::Option(id)) => format!("the value {value} of the option {id:?}"),
        (_, ChoiceSetter::Method(_)) => value.to_string(),
    }
}

fn listed(ids: &[String]) -> String {
    truncated_to_bytes(&ids.join(", "), OFFER_BYTES)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn modes(ids: &[&str]) -> Value {
        let modes: Vec<Value> = ids.iter().map(|id| json!({"id": id, "name": id})).collect();
        json!({"modes": {"currentModeId": ids[0], "availableModes": modes}})
    }

    #[test]
    fn asking_mode_is_found_for_every_known_agent() {
        for (offered, strict) in [
            // claude-agent-acp 0.101
            (
                &["auto", "default", "acceptEdits", "plan", "dontAsk", "bypassPermissions"][..],
                Some("default"),
            ),
            // codex-acp 2.6
            (&["agent", "read-only", "agent-full-access"], Some("read-only")),
            (&["default", "autoEdit", "yolo", "plan"], Some("default")),
            (&["auto", "approve", "smart_approve", "chat"], Some("approve")),
            (
                &["https://x/session-modes#plan", "https://x/session-modes#agent"],
                Some("https://x/session-modes#agent"),
            ),
            // opencode
            (&["build", "plan"], None),
        ] {
            let choice = Offer::of(&modes(offered)).modes.unwrap();
            assert_eq!((choice.strict(), choice.current.as_str()), (strict, Some(offered[0])));
        }
        assert_eq!(Offer::of(&json!({})), Offer::default());
    }

    #[test]
    fn mode_choice_may_be_a_config_option_with_groups() {
        let values = json!([{"group": "a", "name": "A", "options": [{"value": "default", "name": "D"}]}]);
        let option = json!({"id": "m", "category": "mode", "currentValue": "auto", "options": values});
        let offer = Offer::of(&json!({"modes": null, "configOptions": [option]}));
        let choice = offer.modes.as_ref().unwrap();
        assert_eq!((&choice.way, choice.strict()), (&ChoiceSetter::Option("m".into()), Some("default")));
        assert_eq!(offer.models, None);
    }

    #[test]
    fn mode_set_by_config_option_is_kept() {
        let option = json!({"id": "m", "category": "mode", "currentValue": "auto", "options": []});
        let mut answer = modes(&["auto", "default"]);
        answer["configOptions"] = json!([option]);
        let mut settings = Settings::default();
        assert_eq!(Offer::of(&answer).mode(&settings).unwrap(), (Some(json!("default")), None));
        settings.named.config.insert("m".into(), Setting::Text("auto".into()));
        assert_eq!(Offer::of(&answer).mode(&settings).unwrap(), (None, None));
    }

    #[test]
    fn setting_is_sent_as_boolean_for_boolean_options() {
        let text = json!({"id": "t", "type": "select", "currentValue": "x", "options": [{"value": "true"}]});
        let flag = json!({"id": "f", "type": "boolean", "currentValue": false});
        let offer = Offer::of(&json!({"configOptions": [text, flag]}));
        let fit = |id: &str, value: &Setting| offer.fit(&ChoiceSetter::Option(id.into()), value);
        let (yes, on) = (Setting::Text("true".into()), Setting::Flag(true));
        assert_eq!((fit("f", &yes), fit("f", &on)), (json!(true), json!(true)));
        assert_eq!((fit("t", &yes), fit("t", &on)), (json!("true"), json!("true")));
        assert_eq!((fit("unknown", &yes), fit("unknown", &on)), (json!("true"), json!(true)));
    }
}
