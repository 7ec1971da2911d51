#!/usr/bin/env node
// Starts a command, shows what it writes for a while, and then hands it over to bgd while it runs.
//
//     handoff.js LINES COMMAND [ARG...]
//
// Shows LINES lines or a few more itself; the rest is in `bgctl output ID`. Node can't send descriptors over
// a socket, but a child inherits them: `bgctl handoff` does the talking.
'use strict';
const { spawn, spawnSync } = require('node:child_process');

const [lines, ...command] = process.argv.slice(2);
// One pipe for both of its outputs, so that neither goes on writing here.
const child = spawn('sh', ['-c', 'exec "$@" 2>&1', 'sh', ...command], { stdio: ['ignore', 'pipe', 'inherit'] });

function handOver() {
  // From here on nobody may read the pipe in this process. What was read already is ours to show.
  child.stdout.pause();
  const handle = child.stdout._handle;
  handle.readStop();
  for (let rest = child.stdout.read(); rest !== null; rest = child.stdout.read()) process.stdout.write(rest);
  const { status, stdout, stderr, error } = spawnSync(
    'bgctl',
    ['handoff', '--pid', String(child.pid), '--stdout', '3', '-d', command.join(' ')],
    { stdio: ['ignore', 'pipe', 'pipe', handle.fd] },
  );
  if (status === 0) {
    process.stdout.write(stdout);
    process.exit(0);
  }
  // 65: it ended first.
  if (status !== 65) process.stderr.write(stderr ?? `${error.message}\n`);
  // 69: no daemon, or its answer was lost. Then it may have the command.
  if (status === 69 && isHanded()) process.exit(0);
  // It was not handed over: the rest of its output and its exit code are ours.
  child.stdout.on('data', (data) => process.stdout.write(data));
  handle.readStart();
  child.stdout.resume();
}

function isHanded() {
  const { stdout } = spawnSync('bgctl', ['--no-start', '--json', 'list', '--status', 'running']);
  return stdout.length > 0 && JSON.parse(stdout).tasks.some((task) => task.pid === child.pid);
}

let seen = 0;
child.stdout.on('data', function show(data) {
  process.stdout.write(data);
  seen += data.toString('latin1').split('\n').length - 1;
  if (seen >= Number(lines)) {
    child.stdout.off('data', show);
    handOver();
  }
});
child.on('close', (code) => process.exit(code ?? 1));
