//! Applies settings to a session before a prompt: the model, the options and the mode that the task or the
//! configuration names. If neither names a mode, chooses one in which the agent asks before it acts: some agents start
//! in another mode, so that `permissions = "deny"` would deny nothing.
//!
//! A setting stays in the session, but is meant for one run. So a later run in the same process applies its own
//! settings again, even if the agent has changed them meanwhile, and restores those that only an earlier run has named.

use std::collections::BTreeMap;

use bgd_shared::error::ErrorKind;
use serde_json::{Value, json};

use super::Acp;
use super::setup::{ChoiceSetter, Offer, Setup, choosable, offered, shown};
use crate::agents::Settings;
use crate::core::Refusal;

/// A value to set, and its description for people.
type Step = (Value, String);

impl Acp {
    /// Applies the wanted settings to a session, and restores those that are no longer wanted. Returns a warning if the
    /// agent offers modes, none of which is known to ask.
    ///
    /// # Errors
    /// The agent does not offer a wanted setting, or does not accept it.
    pub(super) async fn settle(
        &self,
        session: &str,
        setup: &Setup,
        settings: &Settings,
        is_fresh: bool,
    ) -> Result<Option<String>, Refusal> {
        let offer = &*setup.offer;
        let (mode, warning) = offer.mode(settings)?;
        let mut wanted: BTreeMap<(u8, ChoiceSetter), Step> = BTreeMap::new();
        let mut want = |way: ChoiceSetter, value: Value, what: String| {
            wanted.insert((offer.rank(&way), way), (value, what));
        };
        for (id, value) in &settings.named.config {
            let way = ChoiceSetter::Option(id.clone());
            let value = offer.fit(&way, value);
            want(way, value, format!("the option {id:?}"));
        }
        if let Some(model) = &settings.named.model {
            let choice = choosable("model", model, offer.models.as_ref())?;
            want(choice.way.clone(), choice.value("model", model)?, format!("the model {model:?}"));
        }
        if let Some((choice, mode)) = offer.modes.as_ref().zip(mode) {
            let what = format!("the mode {mode}");
            want(choice.way.clone(), mode, what);
        }
        // Restored before anything is set, as two ways may set the same choice.
        let mut back: BTreeMap<(u8, ChoiceSetter), Step> = BTreeMap::new();
        for (way, value) in setup.before().iter() {
            let key = (offer.rank(way), way.clone());
            if !wanted.contains_key(&key) {
                let what = format!("{}, its initial value", shown(offer, way, value));
                back.insert(key, (value.clone(), what));
            }
        }
        for ((_, way), (value, what)) in back.into_iter().chain(wanted) {
            let base = offer.choice(&way).map_or(Value::Null, |choice| choice.current.clone());
            if is_fresh && base == value {
                continue;
            }
            // Recorded before the request: the agent may apply the value even if its answer is no longer awaited.
            setup.before().entry(way.clone()).or_insert_with(|| base.clone());
            self.set(session, &way, &value, &what, offer).await?;
            if base == value {
                setup.before().remove(&way);
            }
        }
        Ok(warning)
    }

    async fn set(
        &self,
        session: &str,
        way: &ChoiceSetter,
        value: &Value,
        what: &str,
        offer: &Offer,
    ) -> Result<(), Refusal> {
        if value.is_null() {
            // The agent does not list this option.
            let message =
                "an earlier prompt changed an option, and the agent does not report its initial value";
            return Err(Refusal::new(ErrorKind::AgentUnavailable, message).hint("set it with --config"));
        }
        let mut params = json!({ "sessionId": session });
        let method = match way {
            ChoiceSetter::Method(by) => {
                let (method, key) = by.names();
                params[key] = value.clone();
                method
            }
            ChoiceSetter::Option(id) => {
                params["configId"] = id.as_str().into();
                params["value"] = value.clone();
                if value.is_boolean() {
                    params["type"] = "boolean".into();
                }
                "session/set_config_option"
            }
        };
        let Err(trouble) = self.wire.call(method, params).await else { return Ok(()) };
        let mut refusal = self.refusal(&format!("did not accept {what}"), &trouble);
        if refusal.hint.is_none() {
            refusal.hint = offered(offer, way).map(Into::into);
        }
        Err(refusal)
    }
}
