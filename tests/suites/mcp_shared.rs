//! Several `bgctl mcp` of one parent session (R81): each end is reported by one of them.

use bgd_shared::id::TaskId;
use bgd_tests::TestDaemon;
use bgd_tests::mcp::{Mcp, ToolResult};
use serde_json::json;

#[test]
fn r81_each_end_is_reported_by_one_of_two_servers_of_a_session() {
    let daemon = TestDaemon::start();
    let mut servers = [(); 2].map(|()| Mcp::start(&daemon, &["--session", "s", "--keep"]));
    let list = json!({"name": "background_list", "arguments": {}});
    for round in 0..6 {
        let ids: Vec<TaskId> = (0..12).map(|_| daemon.submit_in("s", "true")).collect();
        daemon.block(&ids);
        let requests = servers.each_mut().map(|mcp| mcp.ask("tools/call", &list));
        let mut reported = Vec::new();
        for (mcp, request) in servers.iter_mut().zip(requests) {
            reported.extend(ToolResult::of(&mcp.answer(request)["result"]).reported_ids());
        }
        reported.sort_unstable();
        let mut wanted: Vec<String> = ids.iter().map(ToString::to_string).collect();
        wanted.sort_unstable();
        assert_eq!(reported, wanted, "round {round}");
    }
}
