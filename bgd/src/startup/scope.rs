//! A scope of the daemon's own from the systemd user manager, with a delegated cgroup: what
//! `systemd-run --user --scope -p Delegate=yes` asks for, for this very process.
//!
//! Nothing is asked where the manager's own socket is not there. What is asked goes over the user's bus, which is
//! only started by that where a manager is.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt as _;
use nix::unistd::Uid;
use tokio::net::UnixStream;
use zbus::{Connection, MessageStream, OwnedObjectPath, OwnedVariant, Variant, connection};

use crate::notice::one_line;

/// How long all of it may take; the daemon starts without it then.
pub const PATIENCE: Duration = Duration::from_secs(2);

const SYSTEMD: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const OBJECT: &str = "/org/freedesktop/systemd1";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// The unit that this process is in.
#[derive(Debug)]
pub enum Unit {
    /// It was there before, and its cgroup is delegated.
    Delegated,
    /// A new scope of this name.
    Own(String),
}

/// Has this process moved to a scope of its own, unless the unit that it is in delegates its cgroup already and it
/// may stay there.
///
/// # Errors
/// Says why there is none, for people.
pub async fn enter(instance: &str, may_stay: bool) -> Result<Unit, String> {
    let bus = bus()?;
    let work = async {
        let stream = connect(&bus).await?;
        ask(stream, instance, may_stay).await.map_err(|error| explain(&error))
    };
    let late = |_| format!("the systemd user manager did not answer within {} s", PATIENCE.as_secs());
    tokio::time::timeout(PATIENCE, work).await.map_err(late)?
}

/// The bus that the user manager is on, if there is a manager.
fn bus() -> Result<PathBuf, String> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let folder = folder.ok_or("no systemd user manager: XDG_RUNTIME_DIR is not set").map(PathBuf::from)?;
    let private = folder.join("systemd/private");
    match std::fs::symlink_metadata(&private) {
        Ok(_) => Ok(folder.join("bus")),
        Err(error) => Err(format!("no systemd user manager: {}: {error}", private.display())),
    }
}

async fn connect(bus: &Path) -> Result<UnixStream, String> {
    let absent = |error: std::io::Error| {
        format!("the systemd user manager can't be reached: {}: {error}", bus.display())
    };
    let stream = UnixStream::connect(bus).await.map_err(absent)?;
    let peer = stream.peer_cred().map_err(absent)?;
    if peer.uid() != Uid::effective().as_raw() {
        return Err(format!(
            "the systemd user manager can't be reached: {} is another user's",
            bus.display()
        ));
    }
    // It would take the daemon's process id for that of another process.
    if peer.pid().is_none_or(|pid| pid == 0) {
        return Err("the systemd user manager is in another PID namespace".to_owned());
    }
    Ok(stream)
}

async fn ask(stream: UnixStream, instance: &str, may_stay: bool) -> zbus::Result<Unit> {
    let manager = connection::Builder::unix_stream(stream.into_std()?).build().await?;
    if may_stay && is_in_delegated_unit(&manager).await? {
        return Ok(Unit::Delegated);
    }
    let name = format!("bgd-{instance}.scope");
    // Listens before it asks, so that it can't miss the end of the job.
    let rule = format!("type='signal',interface='{MANAGER}',member='JobRemoved',arg2='{name}'");
    let mut news = MessageStream::for_match_rule(&*rule, &manager, None).await?;
    manager.call_method(Some(SYSTEMD), OBJECT, Some(MANAGER), "Subscribe", &()).await?;
    start(&manager, &name).await?;
    if let Some(message) = news.next().await {
        let (_, _, _, result): (u32, OwnedObjectPath, String, String) = message?.body().deserialize()?;
        return match &*result {
            "done" => Ok(Unit::Own(name)),
            other => Err(zbus::Error::Failure(format!("the start of {name} ended with {other:?}"))),
        };
    }
    Err(zbus::Error::Failure("the bus closed the connection".to_owned()))
}

/// Whether this process is in a unit of the manager that delegates its cgroup.
async fn is_in_delegated_unit(manager: &Connection) -> zbus::Result<bool> {
    let pid = std::process::id();
    let unit: OwnedObjectPath =
        match manager.call_method(Some(SYSTEMD), OBJECT, Some(MANAGER), "GetUnitByPID", &pid).await {
            Ok(answer) => answer.body().deserialize()?,
            // It is in no unit of this manager, as in a login's session.
            Err(zbus::Error::MethodError(..) | zbus::Error::FDO(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
    // The end of the unit's name, as paths have it.
    let kind = match unit.as_str().rsplit_once("_2e") {
        Some((_, "service")) => "org.freedesktop.systemd1.Service",
        Some((_, "scope")) => "org.freedesktop.systemd1.Scope",
        _ => return Ok(false),
    };
    let answer =
        manager.call_method(Some(SYSTEMD), &unit, Some(PROPERTIES), "Get", &(kind, "Delegate")).await?;
    let value: OwnedVariant = answer.body().deserialize()?;
    Ok(matches!(*value, Variant::Bool(true)))
}

async fn start(manager: &Connection, name: &str) -> zbus::Result<()> {
    let no_controllers: Vec<&str> = Vec::new();
    let properties = vec![
        ("Description", Variant::from("bgd, the background daemon, and its tasks")),
        ("PIDs", Variant::from(vec![std::process::id()])),
        // `Delegate=` with an empty list: cgroups of its own are all that the daemon needs. Controllers would change
        // how the programs beside it share the machine.
        ("DelegateControllers", Variant::from(no_controllers)),
        // The user's own limits apply, as without a scope.
        ("TasksMax", Variant::from(u64::MAX)),
        // Nothing stays of it, however it ends.
        ("CollectMode", Variant::from("inactive-or-failed")),
    ];
    let no_others: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
    let body = (name, "fail", properties, no_others);
    manager.call_method(Some(SYSTEMD), OBJECT, Some(MANAGER), "StartTransientUnit", &body).await?;
    Ok(())
}

/// What went wrong in a sentence.
fn explain(error: &zbus::Error) -> String {
    let said = match error {
        zbus::Error::MethodError(_, Some(said), _) => said.clone(),
        error => error.to_string(),
    };
    format!("the systemd user manager gives no scope: {}", one_line(&said))
}
