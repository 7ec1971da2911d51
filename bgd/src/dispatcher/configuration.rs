//! The dispatcher's part in the configuration: reloading it, and applying the changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::request::ReloadResult;
use bgd_shared::time::Timestamp;

use super::Dispatcher;
use crate::client::answer::Answer;
use crate::config::{Config, ConfigError};
use crate::core::{GroupSettings, Input};
use crate::wire::mailbox::Internal;

/// The settings of groups by their names.
type GroupsByName = BTreeMap<Arc<str>, GroupSettings>;

impl Dispatcher {
    /// Reads the configuration on a worker; [`Internal::ConfigRead`] follows.
    pub(super) fn read_config(&self, asked: Option<Answer>) {
        let (path, internals) = (self.identity.config_path.clone(), self.internals.clone());
        self.context.workers.later(move || {
            let modified = Timestamp::of_file(&path);
            let config = Config::load(&path).map(Box::new);
            internals.send(Internal::ConfigRead { config, modified, asked });
        });
    }

    pub(super) fn configured(
        &mut self,
        config: Result<Box<Config>, ConfigError>,
        modified: Option<Timestamp>,
        asked: Option<Answer>,
    ) {
        let config = match config {
            Ok(config) => *config,
            Err(error) => {
                tracing::error!(%error, "configuration not applied");
                self.identity.config_error = Some(error.to_string());
                let error = RpcError::new(ErrorKind::ConfigInvalid, error.to_string())
                    .hint("the previous configuration stays in effect");
                if let Some(answer) = asked {
                    answer.refuse(&error);
                }
                return;
            }
        };
        let before = self.config.group_settings();
        let mut result = self.config.take_over(config);
        self.agents = Arc::new(self.config.agents().unwrap_or_default());
        self.remotes = Arc::new(self.config.remotes().unwrap_or_default());
        self.wait_for_restart(&mut result);
        let ReloadResult { changed, needs_restart, .. } = &result;
        tracing::info!(?changed, ?needs_restart, "configuration read");
        self.executors.all().for_each(|executor| executor.configure(&self.agents, &self.remotes));
        // Agents may now have a mode that makes the warnings obsolete.
        self.agent_warnings.clear();
        self.notifier.configure(self.config.channels().unwrap_or_default(), self.config.limits.channel_queue);
        let (limits, groups) = (self.config.core_limits(), self.config.group_settings());
        result.recreated_groups = self.recreated(&groups, &before);
        result.cleared = self.report_excess();
        self.handle(Input::Configure { limits, groups });
        self.context.outputs.set_limit(self.config.limits.output_bytes.0);
        self.subscribers.set_limit(self.config.limits.event_history_bytes);
        self.server_limits.send_replace((&self.config).into());
        (self.identity.config_loaded, self.identity.config_modified) = (modified.is_some(), modified);
        self.identity.config_error = None;
        if let Some(answer) = asked {
            answer.give(&result);
        }
    }

    /// Returns the groups that have been removed although their entries were and are in the configuration: they are about
    /// to be created again.
    fn recreated(&self, groups: &GroupsByName, before: &GroupsByName) -> Vec<String> {
        let there: BTreeSet<Arc<str>> = self.core.groups().into_iter().map(|group| group.name).collect();
        let is_same = |(name, settings): &(&Arc<str>, &GroupSettings)| before.get(*name) == Some(*settings);
        let kept = groups.iter().filter(is_same).map(|(name, _)| name);
        kept.filter(|name| !there.contains(*name)).map(ToString::to_string).collect()
    }

    /// Logs how many finished tasks the limits of the history are about to clear, and returns the number: what they had
    /// written is gone for good.
    pub(super) fn report_excess(&self) -> u64 {
        let tasks = self.core.history_excess(self.now(), &self.config.core_limits());
        if tasks > 0 {
            tracing::warn!(tasks, "finished tasks exceed the limits, and are cleared with their output");
        }
        tasks as u64
    }

    /// Names the changes that an executor does not apply before a restart, such as the folder of files in use.
    fn wait_for_restart(&mut self, result: &mut ReloadResult) {
        let executors = self.executors.all();
        let keys: Vec<String> =
            executors.flat_map(|executor| executor.needs_restart(&self.remotes)).collect();
        for applied in [&mut result.changed, &mut result.defaulted] {
            applied.retain(|key| !keys.contains(key));
        }
        result.needs_restart.extend(keys);
    }

    /// Ensures that the folder for outputs exists: recreates it if it was removed.
    pub(super) fn ensure_folder(&self) -> Result<(), RpcError> {
        self.context.folder.ensure_not_removed().map_err(|error| {
            let path = self.context.folder.path().display();
            let message = format!("the output folder was removed and can't be recreated: {path}: {error}");
            RpcError::new(ErrorKind::Internal, message)
                .hint("recreate the state folder with mode 0700, or restart the daemon")
        })
    }
}
