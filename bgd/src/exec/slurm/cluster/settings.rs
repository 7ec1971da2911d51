//! Changes of a cluster's settings.

use std::sync::Arc;
use std::time::Duration;

use super::Cluster;
use crate::exec::slurm::clusters::Location;
use crate::exec::slurm::login_work::LoginWork;
use crate::exec::slurm::program::Programs;
use crate::exec::slurm::reach::{Availability, Room};
use crate::exec::slurm::remote_files;
use crate::exec::slurm::tools::Tools;
use crate::remotes::Slurm;

/// How long the removal of unneeded files may take.
const REMOVED_WITHIN: Duration = Duration::from_secs(30);

impl Cluster {
    /// Uses these settings from now on. The host and the work folder stay the same as long as there may be jobs or
    /// files.
    pub(super) fn configure(&mut self, mut settings: Box<Slurm>) {
        let is_moved = Location::of(&settings) != Location::of(&self.settings);
        let before = std::mem::replace(&mut self.next, is_moved.then(|| settings.clone()));
        if is_moved {
            let is_known = before.is_some_and(|before| Location::of(&before) == Location::of(&settings));
            if self.has_submitted && !is_known {
                let name = &*self.tools.name;
                tracing::warn!(
                    name,
                    "`host` or `work_folder` was changed, which takes effect after a restart"
                );
            }
            settings.work_folder.clone_from(&self.settings.work_folder);
            match (&mut settings.shell, &self.settings.shell) {
                (Some(next), Some(known)) => next.host.clone_from(&known.host),
                (next, known) => next.clone_from(known),
            }
        }
        // Another connection would have the control socket of the present one, which work in progress still uses.
        if (&settings.shell, &settings.env) != (&self.settings.shell, &self.settings.env) {
            self.tools.programs = self.programs(&settings);
        }
        self.settings = settings;
        // The known settings remain valid for existing jobs until the cluster has answered.
        if self.runs.is_empty() {
            self.known = None;
        } else {
            self.learn();
        }
    }

    /// Notes that there may be jobs and files from now on, so that the host and the work folder stay until a restart.
    pub(super) fn uses_place(&mut self) {
        self.has_submitted = true;
        self.kind.uses(&self.tools.name, &self.settings);
    }

    /// Returns the tools for settings that do not apply yet. Two connections to the same host would share one control
    /// socket, so the current one is used there.
    pub(super) fn tools_of_next(&self, next: &Slurm) -> Tools {
        let tools = self.kind.tools(&self.tools.name, next);
        if host(next) != host(&self.settings) {
            return tools;
        }
        Tools { programs: self.tools.programs.clone(), ..tools }
    }

    fn programs(&self, settings: &Slurm) -> Programs {
        let Tools { context, name, .. } = &self.tools;
        Programs::new(self.kind.host.clone(), settings, &context.socket, name)
    }

    /// Moves to the configured host and folder, unless there may be jobs or files that this daemon still needs.
    pub(super) fn move_on(&mut self) {
        let may_be_used = self.has_submitted || self.may_have_left;
        if self.next.is_none() || may_be_used || !self.works.is_empty() || !self.pending.is_empty() {
            return;
        }
        let Some(settings) = self.next.take() else { return };
        let name = Arc::clone(&self.tools.name);
        let tools = self.kind.tools(&name, &settings);
        let before = std::mem::replace(&mut self.tools, tools);
        // The note, of a failed attempt, names the previous folder.
        before.origin.forget();
        let is_same_folder = before.folder.path() == self.tools.folder.path();
        tokio::spawn(async move {
            if !is_same_folder {
                // Nothing else is lost if they stay.
                let _ = tokio::time::timeout(REMOVED_WITHIN, remote_files::remove_all(&before, true)).await;
            }
            if let Some(login) = before.programs.login() {
                login.disconnect().await;
            }
        });
        self.settings = settings;
        (self.known, self.watch, self.looked) = (None, None, None);
        (self.reach, self.reading, self.room) =
            (Availability::default(), Availability::default(), Room::default());
        self.login_work = LoginWork::default();
    }
}

fn host(settings: &Slurm) -> Option<&str> {
    settings.shell.as_ref().map(|shell| &*shell.host)
}
