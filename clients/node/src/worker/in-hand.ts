/** The batches in hand: those that the worker has sent, and that are not over. */
import type { Run } from "./context.js";
import type { Answers } from "./output.js";
import type { Batch } from "./protocol.js";

/** The number of removed batches after which the maps are made anew. */
const RENEWED_AFTER = 1024;

/** A batch in hand. */
export class InHand {
    /** The run of the event in hand, if one runs. */
    run: Run | undefined = undefined;
    /** The id of an event that is to be given up before it runs. */
    cancelled: number | undefined = undefined;
    /** The place of the event in hand. */
    at = 0;
    /** The subtask that waits for the worker's reply. */
    stored: { readonly id: number; readonly reply: (error: string | undefined) => void } | undefined =
        undefined;
    /** The end of the last subtask's turn: a batch has one of them at a time. */
    turn: Promise<void> | undefined = undefined;

    constructor(
        readonly batch: Batch,
        readonly answers: Answers,
    ) {}
}

/**
 * All batches in hand, by their numbers.
 *
 * A map that changes often keeps what was removed, until a collection of old objects. Then each collection of new
 * objects copies thousands of events that are over. So the maps are made anew from time to time.
 */
export class AllInHand {
    private batches = new Map<number, InHand>();
    private objects = new Set<string>();
    private removed = 0;

    get size(): number {
        return this.batches.size;
    }

    get(number: number): InHand | undefined {
        return this.batches.get(number);
    }

    /** Returns whether there is a batch with this number, or with this object. */
    has(batch: Batch): boolean {
        return this.batches.has(batch.number) || this.objects.has(batch.object);
    }

    add(inHand: InHand): void {
        this.batches.set(inHand.batch.number, inHand);
        this.objects.add(inHand.batch.object);
    }

    delete({ batch }: InHand): void {
        this.batches.delete(batch.number);
        this.objects.delete(batch.object);
        this.removed += 1;
        if (this.removed >= RENEWED_AFTER) {
            this.removed = 0;
            this.batches = new Map(this.batches);
            this.objects = new Set(this.objects);
        }
    }

    values(): Iterable<InHand> {
        return this.batches.values();
    }
}
