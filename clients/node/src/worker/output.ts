/** Collects the answers, and writes them together: once for all that one read of the worker's lines has caused. */
export class Output {
    private lines: string[] = [];
    /** The places of the plain `ok` of each batch, which a later `ok` of the batch replaces. */
    private readonly oks = new Map<number, number>();
    private isAsked = false;

    constructor(private readonly write: (text: string) => void) {}

    /** Says that an event and all events before it in the batch are delivered. */
    ok(batch: number, id: number): void {
        const line = JSON.stringify({ type: "ok", batch, id });
        const place = this.oks.get(batch);
        if (place === undefined) {
            this.oks.set(batch, this.lines.length);
            this.push(line);
        } else {
            this.lines[place] = line;
        }
    }

    /** Writes another line about a batch. It stays behind the earlier lines of the batch. */
    line(batch: number, line: string): void {
        this.oks.delete(batch);
        this.push(line);
    }

    /** Writes all lines now. */
    flush(): void {
        const { lines } = this;
        this.lines = [];
        this.oks.clear();
        if (lines.length > 0) {
            this.write(`${lines.join("\n")}\n`);
        }
    }

    private push(line: string): void {
        this.lines.push(line);
        if (!this.isAsked) {
            this.isAsked = true;
            setImmediate(() => {
                this.isAsked = false;
                this.flush();
            });
        }
    }
}
