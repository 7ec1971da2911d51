//! An opencode server that the test starts itself and whose URL it puts into the daemon's configuration.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Stdio};
use std::thread;

use serde_json::{Value, json};

use super::{AUTHORIZATION, PASSWORD, Real};
use crate::http::{Answer, Http};
use crate::ports;

/// A server that lives as long as this handle.
#[derive(Debug)]
pub struct Served {
    child: Child,
    address: SocketAddr,
}

impl Served {
    /// Starts a server in the home of a daemon.
    #[track_caller]
    pub fn start(real: &Real) -> Self {
        Self::start_at(real, (Ipv4Addr::LOCALHOST, ports::unused()).into())
    }

    /// Starts a server at this address.
    #[track_caller]
    pub fn start_at(real: &Real, address: SocketAddr) -> Self {
        let port = address.port().to_string();
        let mut command = real.opencode_command(&["serve", "--hostname", "127.0.0.1", "--port", &port]);
        command.env("OPENCODE_SERVER_PASSWORD", PASSWORD).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("opencode can be run");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let listening = lines.find(|line| line.contains("listening on "));
        assert!(listening.is_some(), "opencode's server does not listen");
        // Drain its output, so that it never blocks on the pipe.
        thread::spawn(move || lines.count());
        Self { child, address }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL, for people and for the configuration.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends a request about the daemon's home directory.
    #[track_caller]
    pub fn send(&self, real: &Real, method: &str, path: &str) -> Answer {
        let http = Http::new(&self.url()).header(AUTHORIZATION.0, AUTHORIZATION.1);
        let path = format!("{path}?directory={}", real.daemon.home().display());
        http.send(method, &path, (method == "POST").then(|| json!({})).as_ref())
    }

    /// Returns the number of user messages in a session.
    #[track_caller]
    pub fn prompts(&self, real: &Real, session: &str) -> usize {
        let messages = self.send(real, "GET", &format!("/session/{session}/message")).json();
        let of_user = |message: &&Value| message["info"]["role"] == "user";
        messages.as_array().expect("a list").iter().filter(of_user).count()
    }

    #[track_caller]
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}
