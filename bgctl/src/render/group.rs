//! Renders groups: a table for people, tab-separated columns for programs.

use bgd_shared::order::Group;
use comfy_table::{Cell, Color, Row};

use super::clean;
use super::list_format::ListFormat;
use super::table::fitted;

const HEADER: [&str; 6] = ["NAME", "SLOTS", "STATE", "PENDING", "RUNNING", "FINISHED"];

/// Index of the state column.
const STATE: usize = 2;

/// Lists the groups in the given order.
pub fn list(groups: &[Group], format: &ListFormat) -> String {
    if !format.table {
        return groups.iter().map(row).collect();
    }
    let rows = groups.iter().map(|group| {
        let cells = columns(group).into_iter().enumerate().map(|(place, text)| {
            let cell = Cell::new(text);
            let is_marked = format.colour && place == STATE && group.paused;
            if is_marked { cell.fg(Color::Yellow) } else { cell }
        });
        Row::from(cells.collect::<Vec<_>>())
    });
    fitted(HEADER, rows, format)
}

/// Renders a group on one line.
pub fn row(group: &Group) -> String {
    columns(group).join("\t") + "\n"
}

/// Returns name, used and total slots, whether it is paused, and the numbers of pending, running and finished tasks.
fn columns(group: &Group) -> [String; 6] {
    let state = if group.paused { "paused" } else { "-" };
    [
        clean(&group.name),
        format!("{}/{}", group.used, group.slots),
        state.to_owned(),
        group.pending.to_string(),
        group.running.to_string(),
        group.finished.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, paused: bool) -> Group {
        let (pending, oversized, running, finished) = (3, 0, 1, 40);
        Group { name: name.into(), slots: 2, used: 1, paused, pending, oversized, running, finished }
    }

    #[test]
    fn r100_groups_are_listed_as_table_or_tab_separated_columns() {
        let groups = [group("default", false), group("gpu", true)];
        let plain = ListFormat { table: false, colour: false, ..ListFormat::of_tests() };
        assert_eq!(list(&groups, &plain), "default\t1/2\t-\t3\t1\t40\ngpu\t1/2\tpaused\t3\t1\t40\n");
        let table = list(&groups, &ListFormat { table: true, ..plain.clone() });
        assert_eq!(table.lines().next(), Some("NAME     SLOTS  STATE   PENDING  RUNNING  FINISHED"));
        assert_eq!(table.lines().nth(2), Some("gpu      1/2    paused  3        1        40"));
        let colours = list(&groups, &ListFormat { table: true, colour: true, ..plain });
        assert!(colours.contains("\u{1b}[") && !table.contains('\u{1b}'));
    }
}
