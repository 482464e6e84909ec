/** Runs the handler of one event. The worker and the test kit share this code. */
import { type EventInHand, HandlerContext, Run } from "./context.js";
import { type Handlers, typeOf } from "./handlers.js";
import { type Outcome, outcomeOf, Unknown } from "./outcomes.js";

/** The end of a run. With `ok`, the effects of the run count. */
export type Ended =
    | { readonly type: "ok" }
    | { readonly type: "cancelled" }
    | { readonly type: "failed"; readonly outcome: Outcome };

/** Begins the run of an event's handler. */
export function begin(handlers: Handlers, hand: EventInHand): { run: Run; ended: Promise<Ended> } {
    const run = new Run(hand);
    return { run, ended: handle(handlers, run) };
}

async function handle(handlers: Handlers, run: Run): Promise<Ended> {
    const { event } = run.hand;
    const type = typeOf(event);
    const handler = handlers.for(type);
    let ended: Ended;
    try {
        if (handler === undefined) {
            const which = type === undefined ? "without a type" : `of type ${JSON.stringify(type)}`;
            throw new Unknown(`no handler is registered for events ${which}`);
        }
        await handler(event as never, new HandlerContext(run));
        ended = { type: "ok" };
    } catch (thrown) {
        ended = { type: "failed", outcome: outcomeOf(thrown) };
    }
    run.effects.end();
    // A handler that returns because of its signal has not done its work, so the event must come again.
    return run.isCancelled ? { type: "cancelled" } : ended;
}
