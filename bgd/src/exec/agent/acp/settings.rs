//! What is set in a session before its first prompt: the options, the model and the mode that the configuration names;
//! and where it names no mode, one in which the agent asks before it acts. Some begin in another one, so that
//! `permissions = "deny"` would deny nothing.

use bgd_shared::agent::Permissions;
use bgd_shared::error::ErrorKind;
use serde_json::{Value, json};

use super::Acp;
use super::trouble::bounded;
use crate::agents::Settings;
use crate::core::Refusal;

/// The modes in which an agent is known to ask, by the end of their ids, the best ones first: `default` of Claude
/// Code, Gemini and Qwen, `read-only` of Codex, `approve` of goose, `ask` of the protocol's own text, and the mode of
/// Copilot.
const STRICT: [&str; 5] = ["default", "read-only", "approve", "ask", "session-modes#agent"];

/// How much of what an agent offers is told.
const OFFER_BYTES: usize = 500;

/// How an agent takes a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// By a method of its own, with this name for the value.
    Method(&'static str, &'static str),
    /// As the option of this id.
    Option(String),
}

/// A choice that an agent offers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    way: Way,
    current: String,
    values: Vec<String>,
}

impl Choice {
    /// The modes that the answer to `session/new` and the like offers.
    fn of_mode(answer: &Value) -> Option<Self> {
        let method = Way::Method("session/set_mode", "modeId");
        Self::listed(method, &answer["modes"], "availableModes", "id", "currentModeId")
            .or_else(|| Self::option(answer, "mode"))
    }

    /// The models.
    fn of_model(answer: &Value) -> Option<Self> {
        let method = Way::Method("session/set_model", "modelId");
        Self::listed(method, &answer["models"], "availableModels", "modelId", "currentModelId")
            .or_else(|| Self::option(answer, "model"))
    }

    fn listed(way: Way, offer: &Value, list: &str, id: &str, current: &str) -> Option<Self> {
        let values = offer[list].as_array()?.iter().filter_map(|entry| entry[id].as_str());
        let values: Vec<String> = values.map(str::to_owned).collect();
        let current = offer[current].as_str().unwrap_or_default().to_owned();
        (!values.is_empty()).then_some(Self { way, current, values })
    }

    /// The option of this category.
    fn option(answer: &Value, category: &str) -> Option<Self> {
        let mut options = answer["configOptions"].as_array()?.iter();
        let option = options.find(|option| option["category"] == category)?;
        let id = option["id"].as_str()?.to_owned();
        let entries = option["options"].as_array().into_iter().flatten();
        // They may be in groups.
        let values = entries.flat_map(|entry| match entry["options"].as_array() {
            Some(group) => group.iter().collect(),
            None => vec![entry],
        });
        let values = values.filter_map(|entry| entry["value"].as_str().map(str::to_owned)).collect();
        let current = option["currentValue"].as_str().unwrap_or_default().to_owned();
        Some(Self { way: Way::Option(id), current, values })
    }

    /// The first of these that is offered and in which the agent asks.
    fn strict(&self) -> Option<&str> {
        let ends = |value: &&String, end: &str| {
            let value = value.to_lowercase();
            value == end || end.contains('#') && value.ends_with(end)
        };
        STRICT.iter().find_map(|end| self.values.iter().find(|value| ends(value, end))).map(String::as_str)
    }
}

impl Acp {
    /// Sets what is wanted in a session that this answer has opened. What it comes to: a warning, if the agent offers
    /// modes, and in none of them it is known to ask.
    ///
    /// # Errors
    /// It does not offer what is wanted, or does not take it.
    pub(super) async fn settle(
        &self,
        session: &str,
        answer: &Value,
        settings: &Settings,
    ) -> Result<Option<String>, Refusal> {
        for (id, value) in &settings.config {
            let params = option_params(session, id, value);
            self.set("session/set_config_option", params, &format!("the option {id:?}")).await?;
        }
        if let Some(model) = &settings.model {
            self.choose(session, "model", Choice::of_model(answer), model).await?;
        }
        let modes = Choice::of_mode(answer);
        if let Some(mode) = &settings.mode {
            self.choose(session, "mode", modes, mode).await?;
            return Ok(None);
        }
        let (Some(modes), false) = (modes, settings.permissions == Permissions::Allow) else {
            return Ok(None);
        };
        let Some(strict) = modes.strict().map(str::to_owned) else {
            return Ok(Some(format!(
                "permissions = \"{}\" may not hold: in none of its modes ({}) the agent is known to ask; name one by \
                 `mode` in its entry of the configuration",
                settings.permissions.as_str(),
                offer(&modes)
            )));
        };
        self.choose(session, "mode", Some(modes), &strict).await.map(|()| None)
    }

    async fn choose(
        &self,
        session: &str,
        what: &str,
        choice: Option<Choice>,
        value: &str,
    ) -> Result<(), Refusal> {
        let Some(choice) = choice else {
            let message =
                format!("the agent can't be given the {what} {value:?}: it offers no choice of one");
            return Err(Refusal::new(ErrorKind::AgentUnavailable, message)
                .hint(format!("remove `{what}` from its entry in the configuration")));
        };
        if !choice.values.iter().any(|known| known == value) {
            let message = format!("the agent has no {what} {value:?}");
            return Err(Refusal::new(ErrorKind::AgentUnavailable, message)
                .hint(format!("`{what}` in its entry of the configuration may be: {}", offer(&choice))));
        }
        if choice.current == value {
            return Ok(());
        }
        let named = format!("the {what} {value:?}");
        match &choice.way {
            Way::Method(method, key) => {
                let mut params = json!({ "sessionId": session });
                params[*key] = value.into();
                self.set(method, params, &named).await
            }
            Way::Option(id) => {
                let params = option_params(session, id, &value.into());
                self.set("session/set_config_option", params, &named).await
            }
        }
    }

    async fn set(&self, method: &str, params: Value, what: &str) -> Result<(), Refusal> {
        match self.wire.call(method, params, ()).await {
            Ok(_) => Ok(()),
            Err(trouble) => Err(self.refusal(&format!("did not take {what}"), &trouble)),
        }
    }
}

fn option_params(session: &str, id: &str, value: &Value) -> Value {
    let mut params = json!({ "sessionId": session, "configId": id, "value": value });
    if value.is_boolean() {
        params["type"] = "boolean".into();
    }
    params
}

fn offer(choice: &Choice) -> String {
    bounded(&choice.values.join(", "), OFFER_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(ids: &[&str]) -> Value {
        let modes: Vec<Value> = ids.iter().map(|id| json!({"id": id, "name": id})).collect();
        json!({"modes": {"currentModeId": ids[0], "availableModes": modes}})
    }

    #[test]
    fn the_mode_in_which_an_agent_asks_is_found_with_each_of_those_that_are_known() {
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
            let choice = Choice::of_mode(&modes(offered)).unwrap();
            assert_eq!((choice.strict(), &*choice.current), (strict, offered[0]));
        }
        assert_eq!(Choice::of_mode(&json!({})), None);
    }

    #[test]
    fn a_choice_may_be_an_option_with_groups() {
        let values = json!([{"group": "a", "name": "A", "options": [{"value": "default", "name": "D"}]}]);
        let option = json!({"id": "m", "category": "mode", "currentValue": "auto", "options": values});
        let choice = Choice::of_mode(&json!({"modes": null, "configOptions": [option]})).unwrap();
        assert_eq!((&choice.way, choice.strict()), (&Way::Option("m".into()), Some("default")));
        assert_eq!(Choice::of_model(&json!({"configOptions": [option]})), None);
        assert_eq!(option_params("s", "x", &json!(true))["type"], "boolean");
    }
}
