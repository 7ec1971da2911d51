//! Renders the metrics of `daemon.status` as `OpenMetrics` text, for monitoring (R08).

use std::fmt;

use bgd_shared::request::{ChannelStatus, DaemonStatus, Times};
use bgd_shared::task::Status;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::clean_lines;

/// Renders all metrics, terminated by `# EOF`.
pub fn text(status: DaemonStatus) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Figures(status)));
    let mut text = String::new();
    // Writing to a string can't fail.
    let _ = encode(&mut text, &registry);
    // Names come from the daemon and the configuration, and the text may go to a terminal.
    clean_lines(&text)
}

#[derive(Debug)]
struct Figures(DaemonStatus);

/// Writes metric families, each with its name, help and samples.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.unit(name, help, None, value)
    }

    fn unit(&mut self, name: &str, help: &str, unit: Option<&Unit>, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn seconds(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    /// Writes labels as a gauge that is 1. The text format of older readers, such as `node_exporter`'s textfile collector,
    /// has no type `info`, and they would reject everything.
    fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(1_u64).encode(family.encode_family(&labels)?)
    }

    fn histogram(&mut self, name: &str, help: &str, times: &Times) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        let mut below = 0;
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for bucket in &times.buckets {
            buckets.push((seconds(bucket.le_ms), bucket.count.saturating_sub(below)));
            below = bucket.count;
        }
        buckets.push((f64::INFINITY, times.count.saturating_sub(below)));
        metric.encode_histogram::<NoLabelSet>(seconds(times.sum_ms), times.count, &buckets, None)
    }
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people and graphs")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = &self.0;
        let mut out = Writer(encoder);
        let labels = [("version", status.version.as_str()), ("instance", status.instance.as_str())];
        out.info("bgd_info", "Version and instance of the daemon", &labels)?;
        out.seconds("bgd_uptime", "Uptime of the daemon", seconds(status.uptime_ms))?;
        out.unit(
            "bgd_resident_memory",
            "Resident memory of the daemon",
            Some(&Unit::Bytes),
            status.memory_bytes,
        )?;
        out.gauge("bgd_connections", "Connected clients", status.connections)?;
        out.gauge("bgd_subscriptions", "Subscriptions to events", status.subscriptions)?;
        out.counter("bgd_events", "Events so far", status.seq)?;
        tasks(status, &mut out)?;
        channels(&status.channels, &mut out)?;
        out.counter(
            "bgd_untold",
            "Notices not delivered because the task had no channel",
            status.undelivered,
        )?;
        out.gauge("bgd_inboxes", "Parent sessions with unacknowledged notices", status.inboxes.sessions)?;
        out.gauge("bgd_inbox_items", "Unacknowledged notices", status.inboxes.items)?;
        out.counter(
            "bgd_inbox_lost",
            "Unacknowledged notices dropped because an inbox was full",
            status.inboxes.lost,
        )?;
        out.gauge("bgd_warnings", "Warnings shown by bgctl daemon status", status.warnings.len() as u64)
    }
}

fn tasks(status: &DaemonStatus, out: &mut Writer<'_>) -> fmt::Result {
    let mut family = out.0.encode_descriptor("bgd_tasks", "Tasks by status", None, MetricType::Gauge)?;
    for state in Status::ALL {
        let labels = [("status", state.as_str())];
        ConstGauge::new(status.summary.count(state)).encode(family.encode_family(&labels)?)?;
    }
    out.gauge("bgd_queue_length", "Pending tasks, whatever they wait for", status.summary.pending)?;
    let slots = status.limits.max_concurrent_tasks;
    out.gauge("bgd_slots", "Maximum number of concurrent tasks (max_concurrent_tasks)", slots)?;
    out.histogram("bgd_task_wait", "Time from the submission of a task to its first start", &status.waited)?;
    out.histogram("bgd_task_run", "Run time", &status.ran)
}

fn channels(channels: &[ChannelStatus], out: &mut Writer<'_>) -> fmt::Result {
    let mut family =
        out.0.encode_descriptor("bgd_notices", "Notices by channel and result", None, MetricType::Counter)?;
    for channel in channels {
        let outcomes = [("sent", channel.sent), ("failed", channel.failed), ("dropped", channel.dropped)];
        for (outcome, count) in outcomes {
            let labels = [("channel", channel.name.as_str()), ("type", &channel.kind), ("outcome", outcome)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Notices queued for a channel or being sent";
    let mut family = out.0.encode_descriptor("bgd_notices_queued", help, None, MetricType::Gauge)?;
    for channel in channels {
        let labels = [("channel", channel.name.as_str()), ("type", &channel.kind)];
        ConstGauge::new(channel.queued).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;

    #[test]
    fn metrics_contain_every_figure() {
        let text = text(samples::daemon());
        for line in [
            "bgd_info{version=\"0.1.0\",instance=\"3f2a\"} 1",
            "bgd_uptime_seconds 90.5",
            "bgd_resident_memory_bytes 1048576",
            "bgd_events_total 12",
            "bgd_tasks{status=\"pending\"} 1",
            "bgd_tasks{status=\"running\"} 2",
            "bgd_queue_length 1",
            "bgd_task_wait_seconds_bucket{le=\"0.003\"} 2",
            "bgd_task_wait_seconds_bucket{le=\"0.01\"} 3",
            "bgd_task_wait_seconds_bucket{le=\"+Inf\"} 3",
            "bgd_task_wait_seconds_sum 0.012",
            "bgd_task_run_seconds_bucket{le=\"0.01\"} 0",
            "bgd_task_run_seconds_bucket{le=\"+Inf\"} 2",
            "bgd_task_run_seconds_count 2",
            "bgd_notices_total{channel=\"ops\",type=\"exec\",outcome=\"sent\"} 5",
            "bgd_notices_total{channel=\"ops\",type=\"exec\",outcome=\"dropped\"} 1",
            "bgd_notices_queued{channel=\"ops\",type=\"exec\"} 4",
            "bgd_untold_total 7",
            "bgd_inbox_items 1",
            "bgd_inbox_lost_total 2",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n"));
    }
}
