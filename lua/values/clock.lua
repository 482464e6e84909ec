-- clock: moves the times in Redis back after Redis' clock has stepped back.
--
-- A sweep writes the time into seriatim.meta, at most once a second.
--
-- Step back   The clock is more than a second behind the written time. Every time written before
--             the step is then too far ahead by the difference. The times of rules, held objects
--             and departed names move back by this difference. Each sweep moves only a part of
--             these times, and the next sweep follows at once. A time that is due stays due, and no
--             object waits longer than its own time. A retry may come early in two cases: its time
--             was written in the second between the step and the sweep that noticed the step, or
--             the clock steps back again while times are being moved. The times up to which ticks
--             of cron jobs are handled move only if the step back ends a glitch: it undoes a step
--             ahead that was longer than the time since that step. Then these times become the
--             present time, so that ticks fire again from now on. No tick up to now fires again.
--             After any other step back the ticks up to the old time have fired in their time, so
--             they must not fire again.
-- Step ahead  The clock is further ahead of the written time than the sweeping process can explain:
--             it has stepped ahead, or Redis could not be reached. Leases of live processes may
--             have ended. For AHEAD_MS or longer (adopt.lua) no sweep takes over a name, so that
--             these processes can attach again.
local STEP_MS, MOVES_MAX, AHEAD_MS = 1000, 1000, 5000

-- Moves up to MOVES_MAX members of a sorted set, from the score `cursor` on. Returns the next
-- cursor (nil: no more members) and the number of moved members. Members move to scores below the
-- cursor, so none is met twice.
local function move_back(key, back_ms, cursor, now_ms)
  local from = math.max(tonumber(cursor) or 0, now_ms + 1)
  local page = redis_call('ZRANGE', key, from, '(inf', 'BYSCORE', 'LIMIT', 0, MOVES_MAX, 'WITHSCORES')
  local moved = {}
  for i = 1, #page, 2 do
    moved[i], moved[i + 1] = math.max(tonumber(page[i + 1]) - back_ms, now_ms), page[i]
  end
  if #moved > 0 then
    redis_call('ZADD', key, unpack(moved))
  end
  return #page == 2 * MOVES_MAX and page[#page] or nil, #moved / 2
end

-- A rule whose time of setting is ahead of the clock was set before the step back. Moves back the
-- end and the time of setting of each such rule; there are at most 1,000 rules. All other rules
-- were set before the clock went wrong, or after it was right again.
local function move_rules(back_ms, now_ms)
  if redis_call('TYPE', P .. K.event_rules).ok ~= 'hash' then
    return
  end
  local all, changed = redis_call('HGETALL', P .. K.event_rules), {}
  for i = 1, #all, 2 do
    local ends, _, set_ms = rare.rules.times(all[i + 1])
    if ends and set_ms > now_ms then
      local ends_back = ends > 0 and math.max(ends - back_ms, 1) or 0
      all[i + 1] = rare.rules.with_times(all[i + 1], math.max(set_ms - back_ms, 0), ends_back)
      changed[#changed + 1], changed[#changed + 2] = all[i], all[i + 1]
    end
  end
  if #changed > 0 then
    redis_call('HSET', P .. K.event_rules, unpack(changed))
    rare.rules.write_next(rare.rules.next_of(all))
  end
end

-- Returns the lowest time that must move back by `back_ms`; 0: all times. Perhaps this step back
-- undoes an earlier step ahead by at least as much. Then times below the time of the step ahead
-- were written before that step. These times are right again, so they stay.
local function first_to_move(back_ms)
  local found = redis_call('HMGET', P .. K.meta, 'clock.ahead', 'clock.gained')
  local ahead_ms, gained_ms = tonumber(found[1] or ''), tonumber(found[2] or '')
  redis_call('HDEL', P .. K.meta, 'clock.gained')
  return ahead_ms and gained_ms and back_ms <= gained_ms + 5 * STEP_MS and ahead_ms - 5 * STEP_MS or 0
end

-- Returns whether a step back by `back_ms` ends a glitch of the clock, so that jobs had ticks
-- before their time.
local function ends_glitch(back_ms, noted_ms)
  local found = redis_call('HMGET', P .. K.meta, 'clock.ahead', 'clock.gained')
  local ahead_ms, gained_ms = tonumber(found[1] or ''), tonumber(found[2] or '')
  return ahead_ms and gained_ms and math.abs(back_ms - gained_ms) <= 5 * STEP_MS and noted_ms - ahead_ms < gained_ms
end

-- Makes up to MOVES_MAX cron jobs due now whose next ticks have scores from `cursor` on. A worker
-- then computes their next ticks. If the ticks of a job are handled up to a time ahead of the
-- clock, this time becomes the present time. Returns the next cursor (nil: no more jobs).
local function move_cron(cursor, now_ms)
  local key, last_key = P .. K.events_cron_next, P .. K.events_cron_last
  local is_sound = redis_call('TYPE', key).ok == 'zset' and redis_call('TYPE', last_key).ok == 'hash'
  local from, now_text = math.max(tonumber(cursor) or 0, now_ms + 1), string.format('%.0f', now_ms)
  local names = is_sound and redis_call('ZRANGE', key, from, '(inf', 'BYSCORE', 'LIMIT', 0, MOVES_MAX) or {}
  if #names == 0 then
    return nil
  end
  local scores, lasts = {}, {}
  for i, last in ipairs(redis_call('HMGET', last_key, unpack(names))) do
    scores[2 * i - 1], scores[2 * i] = now_text, names[i]
    local handled, fired = rare.cron.last_of(last)
    if tonumber(handled) > now_ms then
      local fired_text = tonumber(fired) > now_ms and now_text or fired
      lasts[#lasts + 1], lasts[#lasts + 2] = names[i], rare.cron.last_text(now_text, fired_text)
    end
  end
  redis_call('ZADD', key, unpack(scores))
  if #lasts > 0 then
    redis_call('HSET', last_key, unpack(lasts))
  end
  return #names == MOVES_MAX and from or nil
end

-- Returns the value of the field `clock.step`: `BACK_MS NEXT CURSOR`. NEXT is the kind of times
-- that is moved next: glitch (cron jobs), rules, held or departed.
local function step_text(back_ms, next_one, cursor)
  return string.format('%.0f %s %.0f', back_ms, next_one, tonumber(cursor) or 0)
end

-- Writes the time. If the clock has stepped back, begins to move times. If times are still to be
-- moved, continues. The arguments are values of seriatim.meta, nil or false if absent:
--   noted  `clock`: the written time
--   step   `clock.step`: the progress of the moves, `BACK_MS NEXT CURSOR`
-- Returns the number of moved held objects, and whether more is to be moved.
local function follow_clock(noted, step, now_ms)
  local key, noted_ms, now_text = P .. K.meta, ids.parse(noted or ''), string.format('%.0f', now_ms)
  local back_ms, next_one, cursor = string.match(step or '', '^(%d+) (%a+) (%d+)$')
  back_ms = tonumber(back_ms) or 0
  if noted_ms and now_ms < noted_ms - STEP_MS then
    back_ms = back_ms + noted_ms - now_ms
    next_one = ends_glitch(back_ms, noted_ms) and 'glitch' or 'rules'
    -- One command for both: if the call fails later, the step is not forgotten.
    redis_call('HSET', key, 'clock', now_text, 'clock.step', step_text(back_ms, next_one, 0))
  elseif not noted_ms or now_ms >= noted_ms + STEP_MS then
    redis_call('HSET', key, 'clock', now_text)
  end
  if not next_one then
    return 0, false
  end
  local moved = 0
  if next_one == 'glitch' then
    cursor = move_cron(cursor, now_ms)
    next_one = cursor and 'glitch' or 'rules'
  elseif next_one == 'rules' then
    move_rules(back_ms, now_ms)
    next_one, cursor = 'held', first_to_move(back_ms)
  elseif next_one == 'held' then
    cursor, moved = move_back(P .. K.objects_held, back_ms, cursor, now_ms)
    next_one = cursor and 'held' or 'departed'
  else
    cursor = move_back(P .. K.event_workers_departed, back_ms, cursor, now_ms)
    next_one = cursor and 'departed' or nil
  end
  if next_one then
    redis_call('HSET', key, 'clock.step', step_text(back_ms, next_one, cursor))
  else
    redis_call('HDEL', key, 'clock.step')
  end
  return moved, next_one ~= nil
end

return { follow = follow_clock, AHEAD_MS = AHEAD_MS, STEP_MS = STEP_MS }
