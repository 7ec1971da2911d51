//! Requests a scope with a delegated cgroup from the systemd user manager for this very process, or for the keeper of a
//! durable daemon, like `systemd-run --user --scope -p Delegate=yes`.
//!
//! Nothing is requested if the manager's private socket does not exist: the request goes over the user's bus, and
//! connecting may start that bus, which must happen only where a manager runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt as _;
use nix::unistd::Uid;
use tokio::net::UnixStream;
use zbus::{Connection, MessageStream, OwnedObjectPath, OwnedVariant, Variant, connection};

use crate::notice::one_line;

/// The timeout of the whole request; after that the daemon starts without a scope.
pub const PATIENCE: Duration = Duration::from_secs(2);

const SYSTEMD: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const OBJECT: &str = "/org/freedesktop/systemd1";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// The unit that this process is in.
#[derive(Debug)]
pub enum Unit {
    /// The original unit, whose cgroup is delegated.
    Delegated,
    /// A new scope of this name.
    Own(String),
}

/// Moves this process into a scope of its own. Leaves it where it is if its unit already delegates its cgroup and
/// `may_stay` is set.
///
/// # Errors
/// There is no scope; the message says why.
pub async fn enter(instance: &str, may_stay: bool) -> Result<Unit, String> {
    let name = format!("bgd-{instance}.scope");
    with_manager(async |manager| {
        if may_stay && is_in_delegated_unit(&manager).await? {
            return Ok(Unit::Delegated);
        }
        let what = "bgd, the background daemon, and its tasks";
        start(&manager, (&name, what), std::process::id(), None).await?;
        Ok(Unit::Own(name.clone()))
    })
    .await
}

/// Moves another process of this user into a new scope of this name. If both end, as at a logout, the unit `starter`,
/// whose daemon starts processes in the scope, ends first.
///
/// # Errors
/// There is no scope; the message says why.
pub async fn put(pid: u32, name: &str, starter: Option<&str>) -> Result<(), String> {
    let what = "Tasks of bgd, the background daemon";
    with_manager(async |manager| start(&manager, (name, what), pid, starter).await).await
}

/// Reports whether a scope is active, rather than starting or ending; `None` if there is no such scope.
///
/// # Errors
/// The manager can't be queried.
pub async fn is_active(name: &str) -> Result<Option<bool>, String> {
    with_manager(async |manager| {
        let found = manager.call_method(Some(SYSTEMD), OBJECT, Some(MANAGER), "GetUnit", &name).await;
        let unit: OwnedObjectPath = match found {
            Ok(answer) => answer.body().deserialize()?,
            Err(zbus::Error::MethodError(..) | zbus::Error::FDO(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let property = (UNIT, "ActiveState");
        let answer = manager.call_method(Some(SYSTEMD), &unit, Some(PROPERTIES), "Get", &property).await?;
        let value: OwnedVariant = answer.body().deserialize()?;
        Ok(Some(matches!(&*value, Variant::Str(state) if state.as_str() == "active")))
    })
    .await
}

/// Calls the manager, and waits at most [`PATIENCE`].
async fn with_manager<T>(ask: impl AsyncFnOnce(Connection) -> zbus::Result<T>) -> Result<T, String> {
    let bus = bus()?;
    let work = async {
        let stream = connect(&bus).await?;
        let asked = async {
            let manager = connection::Builder::unix_stream(stream.into_std()?).build().await?;
            ask(manager).await
        };
        asked.await.map_err(|error| explain(&error))
    };
    let late = |_| format!("the systemd user manager did not answer within {} s", PATIENCE.as_secs());
    tokio::time::timeout(PATIENCE, work).await.map_err(late)?
}

/// Returns the path of the user manager's bus, if there is a manager.
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
            "the systemd user manager can't be reached: {} belongs to another user",
            bus.display()
        ));
    }
    // The manager would take the daemon's PID for that of another process.
    if peer.pid().is_none_or(|pid| pid == 0) {
        return Err("the systemd user manager is in another PID namespace".to_owned());
    }
    Ok(stream)
}

/// Reports whether this process is in a unit of the manager that delegates its cgroup.
async fn is_in_delegated_unit(manager: &Connection) -> zbus::Result<bool> {
    let pid = std::process::id();
    let unit: OwnedObjectPath =
        match manager.call_method(Some(SYSTEMD), OBJECT, Some(MANAGER), "GetUnitByPID", &pid).await {
            Ok(answer) => answer.body().deserialize()?,
            // The process is in no unit of this manager, as in a login session.
            Err(zbus::Error::MethodError(..) | zbus::Error::FDO(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
    // The end of the unit's name, as escaped in object paths.
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

/// Starts a scope, with its name and description, for a process, and waits until the process is in it. The scope ends
/// after the unit `starter` if both end.
async fn start(
    manager: &Connection,
    (name, what): (&str, &str),
    pid: u32,
    starter: Option<&str>,
) -> zbus::Result<()> {
    // Subscribe before the request, so that the end of the job can't be missed.
    let rule = format!("type='signal',interface='{MANAGER}',member='JobRemoved',arg2='{name}'");
    let mut news = MessageStream::for_match_rule(&*rule, manager, None).await?;
    manager.call_method(Some(SYSTEMD), OBJECT, Some(MANAGER), "Subscribe", &()).await?;
    let mut properties = vec![
        ("Description", Variant::from(what)),
        ("PIDs", Variant::from(vec![pid])),
        // Those that account for the tasks' resource usage; the manager ignores any that it lacks itself. Others, such
        // as `cpu`, would change how the daemon shares the machine with other programs.
        ("DelegateControllers", Variant::from(vec!["memory", "io"])),
        // The user's own limits still apply, as they do without a scope.
        ("TasksMax", Variant::from(u64::MAX)),
        // Removes the unit completely, however it ends.
        ("CollectMode", Variant::from("inactive-or-failed")),
    ];
    // What starts first ends last.
    properties.extend(starter.map(|unit| ("Before", Variant::from(vec![unit]))));
    let no_others: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
    let body = (name, "fail", properties, no_others);
    manager.call_method(Some(SYSTEMD), OBJECT, Some(MANAGER), "StartTransientUnit", &body).await?;
    if let Some(message) = news.next().await {
        let (_, _, _, result): (u32, OwnedObjectPath, String, String) = message?.body().deserialize()?;
        return match &*result {
            "done" => Ok(()),
            other => Err(zbus::Error::Failure(format!("the start of {name} ended with {other:?}"))),
        };
    }
    Err(zbus::Error::Failure("the bus closed the connection".to_owned()))
}

/// Describes an error in one sentence.
fn explain(error: &zbus::Error) -> String {
    let said = match error {
        zbus::Error::MethodError(_, Some(said), _) => said.clone(),
        error => error.to_string(),
    };
    format!("the systemd user manager did not create a scope: {}", one_line(&said))
}
