//! Which files no other user should be able to read.

use std::path::Path;

use super::Config;

impl Config {
    /// Returns the files with secrets: the configuration at `path`, if it may have any, and the files of tokens. The
    /// values of variables, headers and URLs are often credentials.
    pub fn private_files(&self, path: &Path) -> Vec<String> {
        let is_secret = self.channels.values().any(super::ChannelConfig::may_have_secret)
            || self.agents.values().any(super::AgentConfig::has_variables)
            || self.executors.values().any(super::ExecutorConfig::has_variables);
        let config = is_secret.then(|| path.to_path_buf());
        let tokens = self.channels.values().filter_map(super::ChannelConfig::path_of_token);
        config.into_iter().chain(tokens).map(|path| path.display().to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_secrets_are_the_configuration_and_those_of_tokens() {
        let path = Path::new("/c.toml");
        let files = |text: &str| Config::parse(path, text).unwrap().private_files(path);
        for text in [
            "max_concurrent_tasks = 2",
            "[channels.c]\ntype = \"exec\"\ncommand = [\"c\"]",
            "[channels.c]\ntype = \"exec\"\ncommand = [\"c\"]\nenv = {}",
            "[agents.a]\nprotocol = \"template\"\ncommand = [\"a\"]",
            "[executors.e]\ntype = \"ssh\"\nhost = \"h\"",
        ] {
            assert_eq!(files(text), Vec::<String>::new(), "{text}");
        }
        for text in [
            "[channels.c]\ntype = \"exec\"\ncommand = [\"c\"]\nenv = { K = \"v\" }",
            "[channels.c]\ntype = \"webhook\"\nurl = \"https://h/secret\"",
            "[channels.c]\ntype = \"telegram\"\ntoken = \"1:t\"\nchat_id = \"1\"",
            "[agents.a]\nprotocol = \"template\"\ncommand = [\"a\"]\nenv = { K = \"v\" }",
            "[executors.e]\ntype = \"ssh\"\nhost = \"h\"\nenv = { K = \"v\" }",
        ] {
            assert_eq!(files(text), ["/c.toml"], "{text}");
        }
        let text = "[channels.c]\ntype = \"telegram\"\ntoken_file = \"/t\"\nchat_id = \"1\"";
        assert_eq!(files(text), ["/t"]);
    }
}
