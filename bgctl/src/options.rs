//! Matches a word to an option of an agent's question.

use bgd_shared::agent::{InputOption, OptionKind};

/// Finds the option for a word: by id, by name, or by its effect (`allow`, `deny`). `None` denies although no option
/// does that.
///
/// # Errors
/// The word matches no option, or several.
pub fn pick<'a>(options: &'a [InputOption], word: &str) -> Result<Option<&'a InputOption>, String> {
    if let Some(option) = options.iter().find(|option| option.id == word) {
        return Ok(Some(option));
    }
    let wanted = word.to_lowercase();
    let mut named = options.iter().filter(|option| option.name.to_lowercase() == wanted);
    match (named.next(), named.next()) {
        (Some(option), None) => return Ok(Some(option)),
        (Some(_), Some(_)) => return Err(format!("several options are called `{word}`")),
        (None, _) => {}
    }
    let kinds = match word {
        "allow" => [OptionKind::AllowOnce, OptionKind::AllowAlways],
        "deny" => [OptionKind::RejectOnce, OptionKind::RejectAlways],
        _ => return Err(format!("`{word}` is not one of the options")),
    };
    let found = kinds.iter().find_map(|kind| options.iter().find(|option| option.kind == *kind));
    if found.is_none() && word == "allow" {
        return Err("no option can allow it".to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(id: &str, name: &str, kind: OptionKind) -> InputOption {
        InputOption { id: id.into(), name: name.into(), kind }
    }

    #[test]
    fn option_word_matches_id_before_name_before_kind() {
        let options = [
            option("always", "Always allow", OptionKind::AllowAlways),
            option("deny", "Allow", OptionKind::AllowOnce),
            option("never", "Never", OptionKind::RejectAlways),
            option("no", "Not now", OptionKind::RejectOnce),
        ];
        let picked = |word| pick(&options, word).map(|option| option.unwrap().id.as_str());
        assert_eq!(picked("always"), Ok("always"));
        assert_eq!(picked("ALWAYS ALLOW"), Ok("always"));
        assert_eq!(picked("deny"), Ok("deny"));
        assert_eq!(picked("not now"), Ok("no"));
        assert!(picked("Always").unwrap_err().contains("`Always` is not one"));
    }

    #[test]
    fn allow_and_deny_prefer_once_over_always() {
        let all = [
            option("1", "a", OptionKind::RejectAlways),
            option("2", "b", OptionKind::AllowAlways),
            option("3", "c", OptionKind::RejectOnce),
            option("4", "d", OptionKind::AllowOnce),
        ];
        let picked = |options: &[InputOption], word| {
            pick(options, word).map(|option| option.map(|option| option.id.clone()))
        };
        assert_eq!(picked(&all, "allow"), Ok(Some("4".into())));
        assert_eq!(picked(&all, "deny"), Ok(Some("3".into())));
        assert_eq!(picked(&all[..2], "allow"), Ok(Some("2".into())));
        assert_eq!(picked(&all[..2], "deny"), Ok(Some("1".into())));
        assert!(picked(&all[..1], "allow").unwrap_err().contains("can allow it"));
        assert_eq!(picked(&all[1..2], "deny"), Ok(None));
        assert_eq!(picked(&[], "deny"), Ok(None));
    }

    #[test]
    fn ambiguous_option_name_is_refused() {
        let options =
            [option("1", "Yes", OptionKind::AllowOnce), option("2", "yes", OptionKind::AllowAlways)];
        assert!(pick(&options, "YES").unwrap_err().contains("several"));
        assert_eq!(pick(&options, "2").map(|option| option.unwrap().id.as_str()), Ok("2"));
    }
}
