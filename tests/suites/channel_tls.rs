//! Channels over TLS, on a real socket, with a certificate that the system trusts and with one that it does not trust.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use bgd_shared::notice::Notice;
use bgd_shared::request::SubmitParams;
use bgd_tests::{TestDaemon, wait};

/// Prints its port and then the body of each request.
const SERVER: &str = r#"
import http.server, ssl, sys

class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print(self.rfile.read(int(self.headers["content-length"])).decode(), flush=True)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// A server with a certificate for 127.0.0.1 from its own authority.
struct Server {
    child: Child,
    lines: BufReader<ChildStdout>,
    port: u16,
    folder: tempfile::TempDir,
}

impl Server {
    #[track_caller]
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
        openssl(folder.path(), &format!("req -x509 {key} -subj /CN=authority -keyout ca.key -out ca.pem"));
        openssl(
            folder.path(),
            &format!(
                "req -x509 {key} -subj /CN=server -addext subjectAltName=IP:127.0.0.1 \
                 -addext basicConstraints=critical,CA:FALSE -CA ca.pem -CAkey ca.key \
                 -keyout key.pem -out cert.pem"
            ),
        );
        let mut child = Command::new("python3")
            .args(["-c", SERVER, "cert.pem", "key.pem"])
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3 can be run");
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut server = Self { child, lines, port: 0, folder };
        server.port = server.line().parse().expect("a port");
        server
    }

    #[track_caller]
    fn line(&mut self) -> String {
        wait::next_line(&mut self.lines)
    }

    fn authority(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Starts a daemon that notifies this server of everything and trusts only these authorities.
    #[track_caller]
    fn daemon(&self, trusted: &Path) -> TestDaemon {
        let config = format!(
            "default_deliver_to = [\"hook\"]\n[channels.hook]\ntype = \"webhook\"\nstarted = false\n\
             url = \"https://127.0.0.1:{}/\"\n",
            self.port
        );
        TestDaemon::builder().config(config).env("SSL_CERT_FILE", trusted).env("BGD_LOG", "debug").start()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("a child can be ended");
    }
}

#[track_caller]
fn openssl(folder: &Path, args: &str) {
    let output = Command::new("openssl").args(args.split_whitespace()).current_dir(folder).output();
    let output = output.expect("openssl can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn notice_is_sent_over_tls_only_to_trusted_server() {
    let (mut server, other) = (Server::start(), Server::start());
    let stranger = server.daemon(&other.authority());
    stranger.submit_shell("true");
    let line = wait::for_line(&stranger.state_dir().join("bgd.log"), "it is tried again");
    assert!(line.contains("invalid peer certificate"), "{line}");
    let daemon = server.daemon(&server.authority());
    let params = SubmitParams { description: Some("by TLS".to_owned()), ..daemon.params() };
    let id = daemon.submit_with(&SubmitParams { shell: Some("echo hello".into()), ..params }).id;
    // This is the first notice that the server has received.
    let notice: Notice = serde_json::from_str(&server.line()).unwrap();
    assert_eq!((notice.task.id, notice.result.unwrap().text.as_str()), (id, "hello\n"));
}
