// Where records come from: the page itself, or the server that served it.

const ROW_TEXT = 90;

/** Records with the texts that they share put in their places. */
function unpacked({ records, texts }) {
  for (const call of records.flatMap((record) => record.calls)) {
    for (const message of [...call.messages, ...(call.student_messages || [])]) {
      if (typeof message.text === "number") message.text = texts[message.text];
    }
  }
  return records;
}

/** The records of the page, filtered here. */
class EmbeddedSource {
  constructor(data) {
    this.records = unpacked(data);
    this.rows = this.records.map((record) => ({ ...record, about: beginning(record.inputs, ROW_TEXT), record }));
    this.searched = new Map();
  }

  async facets() {
    const sorted = (values) => [...new Set(values)].sort();
    const rewards = this.records.map((record) => record.reward).filter((reward) => reward !== null);
    return {
      iterations: [...new Set(this.records.map((record) => record.iteration))].sort((a, b) => (a ?? -1) - (b ?? -1)),
      modules: sorted(this.records.flatMap((record) => record.calls.map((call) => call.module))),
      statuses: sorted(this.records.map((record) => record.status)),
      sources: sorted(this.records.map((record) => record.source)),
      low: rewards.length ? Math.min(...rewards) : null,
      high: rewards.length ? Math.max(...rewards) : null,
    };
  }

  async search(filters) {
    const rows = this.rows.filter((row) => this.fits(row.record, filters));
    const sign = { best: -1, worst: 1 }[filters.sort];
    if (sign) {
      rows.sort((a, b) => (a.reward === null) - (b.reward === null) || sign * ((a.reward ?? 0) - (b.reward ?? 0)));
    }
    return { rows, total: rows.length, page: 1, pages: 1 };
  }

  fits(record, filters) {
    const low = filters.reward_min === undefined ? -Infinity : Number(filters.reward_min);
    const high = filters.reward_max === undefined ? Infinity : Number(filters.reward_max);
    const bounded = filters.reward_min !== undefined || filters.reward_max !== undefined;
    return (filters.iteration === undefined || filters.iteration === (record.iteration === null ? "logged" : `${record.iteration}`))
      && (filters.module === undefined || record.calls.some((call) => call.module === filters.module))
      && (filters.status === undefined || record.status === filters.status)
      && (filters.source === undefined || record.source === filters.source)
      && (!bounded || (record.reward !== null && record.reward >= low && record.reward <= high))
      && (filters.q === undefined || this.text(record).includes(filters.q.toLowerCase()));
  }

  /** What the text filter looks at: ids, inputs, output, error, completions. */
  text(record) {
    if (!this.searched.has(record)) {
      const whole = (text) => (text === null || typeof text === "string" ? text : `${text.head}\n${text.tail}`);
      const texts = [record.rollout_id, record.example_id, record.inputs, record.output, record.error];
      texts.push(...record.calls.map((call) => call.completion));
      this.searched.set(record, texts.map(whole).filter((text) => text !== null).join("\n").toLowerCase());
    }
    return this.searched.get(record);
  }

  async record(row) {
    return row.record;
  }
}

/** All rollouts, page by page, from `mmgrpo report --serve`. */
class ServedSource {
  async get(address, signal) {
    const answer = await fetch(address, { signal, cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.text()).slice(0, 500));
    return answer.json();
  }

  async facets() {
    return this.get("/api/facets");
  }

  async search(filters, page, signal) {
    const found = await this.get(`/api/rollouts?${new URLSearchParams({ ...filters, page: String(page) })}`, signal);
    return { ...found, rows: found.rows.map((row) => ({ ...row, kind: null })) };
  }

  async record(row, signal) {
    const [name, artifact] = [row.rollout_id, row.artifact].map(encodeURIComponent);
    return unpacked(await this.get(`/api/rollout/${name}?artifact=${artifact}`, signal))[0];
  }
}
