//! Tests of the registry: its indexes always agree with its tasks.

use bgd_shared::time::Timestamp;

use super::super::task::Work;
use super::*;

fn task(bits: u128, session: Option<&str>) -> Task {
    let spec = Spec {
        work: Work::Shell(OsText::from("true")),
        session: session.map(Arc::from),
        umask: 0o022,
        ..Spec::of_daemon()
    };
    let state = State::Queued { env: Arc::new(Env::default()) };
    let task = Task::new(TaskId::from_u128(bits), Arc::new(spec), Timestamp::default(), state);
    Task { key: Some("key".into()), ..task }
}

fn registry(ids: &[u128]) -> Registry {
    let mut registry = Registry::default();
    for (bits, expected) in ids.iter().zip(1..) {
        assert_eq!(registry.insert(task(*bits, None)), Ordinal(expected));
    }
    registry
}

#[test]
fn unique_id_prefix_finds_its_task() {
    let low = 0x3f2a_9c1e << 96;
    let high = 0x3f2a_9c1f << 96;
    let registry = registry(&[high, low, 0, u128::MAX]);
    let find = |text: &str| registry.find(&text.parse().unwrap());
    assert_eq!(find("3f2a9c1e"), Ok(Ordinal(2)));
    assert_eq!(find("3F2A9C1F-0000"), Ok(Ordinal(1)));
    assert_eq!(find("0000"), Ok(Ordinal(3)));
    assert_eq!(find("ffff"), Ok(Ordinal(4)));
    assert_eq!(find("3f2b"), Err(CoreError::NotFound("3f2b".to_owned())));
    let both = vec![TaskId::from_u128(low), TaskId::from_u128(high)];
    assert_eq!(find("3f2a9c1"), Err(CoreError::Ambiguous("3f2a9c1".to_owned(), both)));
}

#[test]
fn candidates_of_ambiguous_prefix_are_bounded() {
    let ids: Vec<u128> = (0..100).collect();
    let Err(CoreError::Ambiguous(_, candidates)) = registry(&ids).find(&"0000".parse().unwrap()) else {
        panic!("one of a hundred was guessed")
    };
    assert_eq!(candidates.len(), CANDIDATES);
    assert!(candidates.is_sorted());
}

#[test]
fn shared_data_is_counted_once_until_the_last_task_drops_it() {
    let mut registry = registry(&[]);
    let env: Env = [("SIZE".into(), OsText::from("x".repeat(10_000)))].into_iter().collect();
    let mut ordinals = Vec::new();
    for bits in 0..10 {
        let env = registry.share_env(env.clone());
        let mut task = Task { state: State::Queued { env }, ..task(bits, None) };
        registry.share_spec(Arc::make_mut(&mut task.spec));
        let (before, more) = (registry.held(), registry.held_more_with([&task]));
        ordinals.push(registry.insert(task));
        assert_eq!(registry.held(), before + more);
        assert_eq!(more > 10_000, bits == 0, "{more}");
    }
    let read_back: Registry = serde_json::from_str(&serde_json::to_string(&registry).unwrap()).unwrap();
    assert_eq!(read_back.held(), registry.held());
    let starting = |task: &mut Task| task.state = State::Starting { stop: None, env: None, give_up_at: None };
    for ordinal in &ordinals {
        assert!(registry.held() > 10_000);
        registry.change(*ordinal, starting);
    }
    assert!(registry.held() < 20_000, "{}", registry.held());
    for ordinal in &ordinals {
        registry.remove(*ordinal);
    }
    assert_eq!(registry.held(), 0);
}

#[test]
fn removed_task_is_in_no_index() {
    let mut registry = registry(&[]);
    let mine = registry.insert(task(1, Some("s")));
    let other = registry.insert(task(2, None));
    assert_eq!(registry.by_key(Some("s"), "key").map(|task| task.id), Some(TaskId::from_u128(1)));
    assert!(registry.remove(mine).is_some());
    assert!(registry.remove(mine).is_none(), "it is gone");
    assert!(registry.by_key(Some("s"), "key").is_none());
    assert_eq!(registry.ordinal(TaskId::from_u128(1)), None);
    assert_eq!(registry.of_session(Some("s")), []);
    assert!(registry.remove(other).is_some());
    assert!(registry.sessions.is_empty());
    assert_eq!((registry.len(), registry.summary(), registry.held()), (0, Summary::default(), 0));
}
