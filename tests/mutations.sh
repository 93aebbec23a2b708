#!/usr/bin/env bash
# Checks that can fail: plants each known fault and demands that the tests named beside it turn red.
#
#   tests/mutations.sh              all faults
#   tests/mutations.sh lazy_wake    only these
#   tests/mutations.sh loom lib     all whose tests are there
#
# A fault is code under cfg!(afflux_mutation = "<name>"). Every name in src/ has a row here and the other way round.
# One build has them all (cfg afflux_mutations) and AFFLUX_MUTATION says which is on; only a fault that is an
# attribute, #[cfg(afflux_mutation = ..)], takes a build of its own. Either cfg reaches the crate itself alone,
# through a wrapper around rustc, so that no dependency is built again. Before the faults, the same tests must be
# green with none of them on. A test that hangs under its fault is red too.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."

# fault | where: loom (the models under loom), lib, or a test target | filters: of the tests that each selects, one must
# turn red
table='
ring_relaxed_publish    | loom | ring::
mark_forgets_waiter     | loom | mark::a_refused_sender_is_seen_by_the_release
mark_keeps_version      | loom | mark::nothing_is_admitted_above_a_new_limit
baton_forgets_flag      | loom | baton::
lazy_wake               | loom | wake::
tray_left_unseen        | loom | wake::
writable_unheeded       | sim  | promises
all_are_keepers         | memory | threads_that_call
slots_kept              | lib  | where_slots_are_few
parks_seated            | lib  | who_parks_within_stands_up
page_settles_early      | loom | page::a_settled_page_has_the_new_peak
published_early_version | loom | published::
room_enters_blindly     | loom | room::
cell_ignores_generation | loom | cell::a_late_reply_against_the_next_use_of_the_place
cell_double_terminal    | loom | cell::reply_against_expiry
cell_forgets_waker      | loom | cell::the_end_against_first_poll_and_re_poll
cell_reuse_linked       | loom | cell::a_done_list_against_a_holder_who_is_faster
cell_bound_first        | loom | cell::publishing_against_a_sweep
cell_unfenced           | loom | cell::publishing_against_a_sweep
handed_over_unlinked    | loom | cell::a_hand_over_against_an_end_that_is_taken
cell_taken_unseen       | loom | cell::an_inbox_that
cell_untagged           | loom | cell::a_place_is_one_callers
line_unheeded           | loom | line::who_stays_becomes_the_first
gate_overtake           | loom | gate::a_newcomer_does_not_overtake
gate_lost_release       | loom | gate::a_release_against_one_who_enqueues
gate_unversioned        | loom | gate::shares_hold_while_permits_move
lead_left_unarmed       | loom | lead::who_leaves_something_owed_has_it_watched
lead_warm_while_owed    | loom | lead::a_lane_is_not_warm_while_something_is_owed
lead_unexpected         | loom | lead::a_stuck_leader_holds_up_nobody
lead_hushed_blindly     | loom | lead::
announced_allocated     | prop | codec::
long_length_unchecked   | prop | codec::
egress_loses_unbegun    | prop | egress::
origin_charge_payload_only | prop | origin::
origin_oversize_twice   | prop | origin::
wheel_early             | prop | wheel::
topics_forget_length    | prop | topics::
publications_drop_uncounted | prop | publications::
stream_limit_ignored    | prop | stream::
lead_unjudged           | api  | a_leader_that_is_stuck_holds_up_nobody
lead_word_lost          | sim  | promises
spinning_shard_reads_nothing | api | a_spinning_shard_reads_its_own_replies
shard_unexpected        | lib  | a_reply_that_the_shard_does_not_read
permit_after_callback   | lib  | a_permit_is_back_before_the_first_instruction
permit_returned_twice   | lib  | a_job_that_may_not_start_keeps_its_permit
late_admission          | lib  | room_that_comes_after_the_deadline
assembly_unread         | lib  | the_rest_of_a_record_is_read
owned_charged_anew      | lib  | a_stock_record_gives_back
reply_needs_permit      | lib  | a_reply_needs_no_permit
pause_holds_replies     | lib  | an_answer_leaves_while_its_peer_is_paused
blocked_stops_writing   | lib  | a_peer_that_takes_nothing
room_unoffered          | lib  | the_smallest_limits_make_progress a_pause_and_a_full_queue an_operation_that_waits_is_never_moved
room_unused             | lib  | room_that_comes_after an_operation_that_waits_is_never_moved
too_large_accepted      | lib  | a_message_that_is_too_large
shutdown_unsealed       | lib  | a_host_that_ends_is_sealed
panic_keeps_places      | lib  | a_thousand_panics
abandoned_draw_kept     | lib  | lost_links_leave_nothing
gate_newest_first       | lib  | the_order_of_grants_is_the_order_of_tickets the_oldest_of_all_shards_comes_first
cancelled_still_counted | lib  | a_cancelled_ticket_takes_nothing
gate_grants_when_stopped | lib | stop_ends_every_wait_once
no_hysteresis           | lib  | thresholds_are_crossed_once
reset_to_default        | lib  | a_pause_that_spans_a_reset a_wait_that_spans_a_reset
pause_rounds_down       | lib  | every_pair_of_percentages thresholds_round_away
zero_jobs_pass          | lib  | resolve::
quota_rounds_up         | lib  | the_smallest_known_number_of_processors
left_over_kept          | lib  | the_odd_byte_goes_to_the_lower_id
unlimited_unsaid        | lib  | an_unlimited_mark_takes_the_bound_away
chunks_never_freed      | lib  | only_some_chunks_are_kept
stale_waiters_kept      | lib  | waiters::
parked_at_low_mark_only | lib  | a_parked_source_is_told_when_the_queue_is_empty
new_link_untold         | lib  | a_new_link_is_told_even
stale_pause_heard       | lib  | a_stale_epoch_cannot_overwrite
weights_unsmooth        | lib  | turns_follow_the_weights_exactly
away_not_found          | lib  | unknown_is_not_away
token_twice             | lib  | a_token_is_used_up_by_a_reply_that_fails
block_unheeded          | prop | mark::
waiters_overtaken       | prop | mark::
unspent_kept            | prop | ingress::
client_unheld           | lib  | sessions::
client_unanswered       | lib  | sessions::
client_end_unread       | lib  | sessions::
stock_told              | api  | a_stock_peer_is_told_of_no_pressure
peer_end_unread         | api  | a_stock_peer_that_speaks_and_goes
target_uncapped         | api  | a_hot_target_leaves_permits_to_others
ring_unwoken            | sim  | promises
target_capped_for_good  | sim  | promises
expiry_on_own_clock     | sim  | promises
gate_ignores_age        | sim  | promises
waited_clock_stands     | sim  | promises
broken_unheard          | sim  | promises
mark_moves_unseen       | sim  | promises
waiter_end_untold       | sim  | promises
slot_unrelieved         | sim  | promises
pause_outlives_link     | sim  | promises
replies_unadmitted      | sim  | promises
host_replies_unrelieved | sim  | promises
permit_kept_unhandled   | sim  | promises
grant_unwoken           | sim  | promises
crossing_untold         | sim  | promises
detach_admits_nobody    | sim  | promises
reply_crosses_links     | sim  | promises
unparked_unread         | sim  | promises
egress_resends_begun    | sim  | promises
gone_reply_waits        | sim  | promises
attach_untold           | sim  | promises
lane_gated              | clock | lanes::a_dial lanes::two_nodes lanes::a_stopped
callback_under_lock     | clock | calls::callbacks
nested_deadline_own     | clock | calls::a_circle
detached_waits_on       | clock | lanes::sends_that_wait lanes::the_next waits::every_cause
cancelled_sent          | clock | waits::a_request_that_is_given_up waits::twenty
expiry_starves          | clock | timers::a_source
payload_swallowed       | clock | waits::a_timeout
room_full_unnamed       | clock | waits::every_cause
ended_waiter_counts     | clock | waits::no_error
waiters_unmeasured      | clock | waits::of_a_hundred
ring_full_refuses       | clock | waits::housekeeping calls::an_all_to_all
expired_run             | clock | timers::a_request_that_expires timers::skipping_is timers::skipping_the
served_stays_oldest     | clock | turns::a_waiting_origin turns::one_that calls::a_used_up
links_pile_up           | clock | turns::links
return_path_bounded     | clock | timers::the_most
paused_counts_silent    | clock | lanes::a_paused_peer
millis_round_down       | lib  | time::
since_goes_back         | prop | clocks::
sends_wait_long         | lib  | the_defaults
shares_ignored          | lib  | fairness::
first_publication_dropped | lib | publications::
jitter_below_cap        | lib  | backoff::
cost_kept               | prop | bridge::
drain_without_end       | api  | closing::
idle_holds_drain        | api  | closing::
dropped_unanswered      | api  | a_dropped_responder
shards_may_block        | api  | waiting_on_a_shard
wait_keeps_lock         | api  | a_wait_for_room_holds
chance_unseeded         | sim  | a_seed_is_a_run
both_links_stay         | api  | rivals::of_two_nodes
role_unnamed            | api  | pubsub::several_publishers
newcomer_wins           | api  | rivals::a_living
timeout_ignored         | clock | waits::a_timeout
drop_lets_run           | clock | waits::a_request_that_is_given_up
backstop_waits_for_shard | clock | replies::a_stuck_shard
writer_captured         | lib  | nobody_writes_what_others_leave
awaited_refused         | clock | who_waits_for_a_reply_gets_it
hold_unbounded          | clock | replies::a_reply_that_finds
half_started            | lib  | boot::
late_judges_first       | clock | timers::whoever_overslept
'

patience=180
# Under a fault. Without one, the slowest of those that hang takes three seconds.
hung=15
# The simulation tries so many seeds, and ends with the first that breaks a promise.
seeds=200
target=${CARGO_TARGET_DIR:-$PWD/target}
rows=$(sed -e 's/[[:space:]]*|[[:space:]]*/|/g' -e '/^[[:space:]]*$/d' <<<"$table")
names=$(cut -d'|' -f1 <<<"$rows")

planted=$(grep -rhoE 'afflux_mutation *= *"[a-z0-9_]+"' src | grep -oE '"[a-z0-9_]+"' | tr -d '"' | sort -u)
apart=$(comm -3 <(sort -u <<<"$names") <(printf '%s\n' "$planted"))
if [[ -n $apart ]]; then
    printf 'rows without a fault in src/ (left) and faults without a row here (right):\n%s\n' "$apart"
    exit 1
fi

wanted=()
for name in "${@:-}"; do
    mapfile -t found < <(awk -F'|' -v name="$name" 'name == "" || $1 == name || $2 == name { print $1 }' <<<"$rows")
    [[ -n ${found[*]:-} ]] || { echo "no fault and no place '$name'"; exit 2; }
    wanted+=("${found[@]}")
done
export CARGO_TERM_PROGRESS_WHEN=never CARGO_INCREMENTAL=0 AFFLUX_SEEDS=$seeds
wrappers=$target/mutations
mkdir -p "$wrappers"

# wrapper NAME CFG: what stands before rustc. Kept if unchanged: a newer wrapper would be a new compiler.
wrapper() {
    # A model under a fault ends at its first bad interleaving, so most of the time goes into compiling.
    printf '#!/bin/sh\ncompiler=$1; shift\nexec "$compiler" "$@" -C opt-level=1 -C debuginfo=0 -C debug-assertions=on --cfg '\''%s'\''\n' \
        "$2" >"$wrappers/$1.new"
    chmod +x "$wrappers/$1.new"
    cmp -s "$wrappers/$1.new" "$wrappers/$1" || mv "$wrappers/$1.new" "$wrappers/$1"
    rm -f "$wrappers/$1.new"
}

# prepare WRAPPER PLACE: how the tests of a place are built and run, in `run`.
prepare() {
    run=(env "RUSTC_WORKSPACE_WRAPPER=$wrappers/$1")
    case $2 in
    loom) run+=("RUSTFLAGS=--cfg afflux_loom" "CARGO_TARGET_DIR=$target/loom" cargo test --locked --release --test loom) ;;
    lib) run+=(cargo test --locked --release --lib) ;;
    *) run+=(cargo test --locked --release --test "$2") ;;
    esac
}

failed=0
# report NAME PLACE FILTER BEGAN OUTCOME
report() {
    [[ $5 == red* || $5 == green ]] || failed=1
    printf '%-28s %-6s %-52s %4d s  %s\n' "$1" "$2" "$3" $((SECONDS - $4)) "$5"
}

declare -A sound
# is_sound PLACE: its tests are built with all faults, once, and are green with none of them on. The models take
# long when nothing ends them, and run by themselves elsewhere.
is_sound() {
    local log=$wrappers/all-$1.log began=$SECONDS filters outcome=green
    [[ -z ${sound[$1]-} ]] || { [[ ${sound[$1]} == green ]]; return; }
    mapfile -t filters < <(awk -F'|' -v where="$1" '$2 == where { print $3 }' <<<"$rows" | tr ' ' '\n' | sort -u)
    prepare all "$1"
    if ! "${run[@]}" --no-run >"$log" 2>&1; then
        outcome="FAILED: does not build, see $log"
    elif [[ $1 != loom ]] && ! AFFLUX_SEEDS=4 timeout "$patience" "${run[@]}" -- "${filters[@]}" >"$log" 2>&1; then
        outcome="FAILED: red without a fault, see $log"
    fi
    report "(none)" "$1" "" "$began" "$outcome"
    sound[$1]=$outcome
    [[ $outcome == green ]]
}

# faulty: runs the tests with the fault on; what it ended with. Over sockets a fault shows by the order in which threads
# run, so a green run there is tried again.
faulty() {
    local try tries=1 ended=0
    [[ $where != api ]] || tries=3
    for ((try = 1; try <= tries; try++)); do
        ended=0
        AFFLUX_MUTATION=$name timeout --kill-after=5 "$hung" "${run[@]}" -- "${filters[@]}" >"$log" 2>&1 || ended=$?
        [[ $ended == 0 ]] || break
    done
    return "$ended"
}

wrapper all afflux_mutations
for name in "${wanted[@]}"; do
    IFS='|' read -r _ where filter < <(grep "^$name|" <<<"$rows")
    if grep -rqE '#\[cfg\(.*afflux_mutation *= *"'"$name"'"' src; then
        built=$name
        wrapper "$name" "afflux_mutation=\"$name\""
    else
        built=all
        is_sound "$where" || continue
    fi
    prepare "$built" "$where"
    read -ra filters <<<"$filter"
    log=$wrappers/$name.log
    began=$SECONDS
    if ! "${run[@]}" --no-run >"$log" 2>&1; then
        outcome="FAILED: does not build, see $log"
    elif faulty; then
        outcome="FAILED: stayed green, see $log"
    elif [[ $? =~ ^(124|137)$ ]]; then
        outcome="red (hung)"
    elif ! grep -qE '^running [1-9]' "$log"; then
        outcome="FAILED: no test matched, see $log"
    else
        outcome="red"
        for one in "${filters[@]}"; do
            [[ ${#filters[@]} == 1 ]] || grep -qE "^test .*$one.* FAILED" "$log" || outcome="FAILED: $one stayed green, see $log"
        done
    fi
    report "$name" "$where" "$filter" "$began" "$outcome"
done
exit "$failed"
