// Counts changes, writes their keys to a file, and measures. It does the same as meter.py.

const fs = require("node:fs");

class Meter {
  constructor(spec) {
    this.keys = fs.openSync(spec.keys, "w");
    this.lines = "";
    this.warmUp = spec.warm_up;
    this.total = spec.warm_up + spec.events;
    this.count = 0;
  }

  // Takes the key of one change; returns true after the last change.
  take(key) {
    this.lines += `${key}\n`;
    this.count += 1;
    if (this.lines.length > 8192) {
      this.flush();
    }
    if (this.count === this.warmUp) {
      this.begin = [this.count, performance.now(), process.cpuUsage()];
    }
    if (this.count >= this.total && !this.end) {
      this.end = [performance.now(), process.cpuUsage(this.begin[2])];
    }
    return this.count >= this.total;
  }

  flush() {
    fs.writeSync(this.keys, this.lines);
    this.lines = "";
  }

  // Prints the figures as one line of JSON.
  report() {
    this.flush();
    const [begun, wall] = this.begin;
    const [ended, cpu] = this.end;
    const figures = {
      count: this.count,
      events: this.count - begun,
      seconds: (ended - wall) / 1e3,
      cpu: (cpu.user + cpu.system) / 1e6,
      mebibytes: peakMebibytes(),
      versions: { "Node.js": process.versions.node },
    };
    console.log(JSON.stringify(figures));
  }
}

function peakMebibytes() {
  const status = "/proc/self/status";
  if (!fs.existsSync(status)) {
    return 0;
  }
  return Number(/^VmHWM:\s*(\d+)/m.exec(fs.readFileSync(status, "utf8"))[1]) / 1024;
}

module.exports = { Meter, spec: JSON.parse(fs.readFileSync(process.argv[2], "utf8")) };
