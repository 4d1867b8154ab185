//! The messages about options of limits.

use crate::core::message::messages;

messages! {
    bucket_interval_is_zero() => "'bucket_interval' is 0",
        "write a longer interval, or remove 'bucket_interval'";
    bucket_interval_too_long(interval, window) => "a bucket_interval of {interval} is longer than \
        the window of {window}",
        "write {window} or less, or remove 'bucket_interval' for a sixtieth of the window";
    bucket_interval_too_short(interval, span, count, most, right) => "a bucket_span of {span} with \
        a bucket_interval of {interval} makes {count} buckets, and {most} is the most",
        "write {right} or more";
    bucket_span_too_long(interval, span, count, most, right) => "a bucket_span of {span} with a \
        bucket_interval of {interval} makes {count} buckets, and {most} is the most",
        "write {right} or less, or a longer bucket_interval";
    bucket_span_too_short(span, window, interval, shortest) => "a bucket_span of {span} is shorter \
        than the window of {window} and one bucket_interval of {interval}",
        "write {shortest} or more, or remove 'bucket_span'";
    subject_expiry_too_short(expiry, span) => "a subject_expiry of {expiry} drops keys whose \
        buckets count for {span}", "write {span} or more, or remove 'subject_expiry'";

    burst_is_zero() => "'burst' is 0, which refuses every hit",
        "write 1 or more, or remove 'burst'";
    max_delay_too_long() => "'max_delay' is longer than 100 years", "write a shorter duration";
    log_too_large(limit, largest) => "a sliding_window_log stores every hit and allows a limit of \
        at most {largest}, not {limit}",
        "write 'algorithm: sliding_window_buckets', which has no such bound";

    max_debt_out_of_range(limits, most) => "'max_debt' is {limits}, not 1 to {most}",
        "write how many full limits a key may be in debt";
    max_debt_without_count_denied() => "'max_debt' has no meaning where refused hits do not count",
        "write 'count_denied: true', or remove 'max_debt'";
    scale_is_zero() => "'scale' is 0, of which no limit can be made",
        "write 1 or more, or remove 'scale'";
    default_cost_is_zero() => "'default_cost' is 0, with which a request that names no hits would \
        count nothing", "write 1 or more, or remove 'default_cost'";
    amount_too_large(option, units, algorithm, largest) => "'{option}' is {units}, which is more \
        than a {algorithm} counts exactly in this window", "write at most {largest}";
    amount_of_units_too_large(option, units, scale, algorithm, largest) => "'{option}' is {units} \
        of {scale} hits each, which is more than a {algorithm} counts exactly in this window",
        "write at most {largest}, or a smaller 'scale'";
    window_out_of_range() => "the window is zero or longer than 100 years",
        "write a unit_multiplier from 1 on that makes the window shorter";
    option_of_other_algorithm(option, algorithm, owners) => "'{option}' has no meaning for a \
        {algorithm}", "remove it, or write 'algorithm: {owners}'";

    max_duration_missing() => "a concurrency limit has no 'max_duration', after which a request \
        that was lost gives its place back",
        "write the time that the longest request takes, such as 'max_duration: 60s'";
    max_duration_out_of_range() => "'max_duration' is zero or longer than 24 hours",
        "write the time that the longest request takes, such as 60s";
    too_many_places(option, units, largest) => "'{option}' is {units}, and a concurrency limit has \
        at most {largest} places", "write at most {largest}";

    algorithm_without_lease(algorithm, why) => "a {algorithm} has no 'lease': {why}",
        "remove 'lease', or write 'algorithm: sliding_window_counter'";

    reservation_ttl_out_of_range() => "the 'ttl' of 'reservations' is shorter than 1 second or \
        longer than 24 hours", "write the time that the longest request takes, such as 60s";
    reservations_without_count_denied() => "a limit with 'reservations' has no 'count_denied: \
        false': hits above a reservation could not be charged",
        "remove 'count_denied', or 'reservations'";
    reservations_with_lease() => "a limit with 'reservations' has no 'lease': a reservation is \
        decided by the store", "remove one of the two";

    calendar_without_period(option) => "'{option}' has no meaning without 'period: calendar'",
        "write 'period: calendar', or remove it";
    calendar_of_short_unit(unit) => "'period: calendar' has no meaning for 'unit: {unit}'",
        "write 'unit: day', week, month, quarter or year, or remove 'period'";
    calendar_with_multiplier() => "'unit_multiplier' has no meaning with 'period: calendar': a \
        window is one unit", "remove it, or remove 'period'";
    week_starts_with_anchor() => "'week_starts' and 'anchor' both set the first day of the week",
        "remove one of them";
    week_starts_without_week(unit) => "'week_starts' has no meaning for 'unit: {unit}'",
        "write 'unit: week', or remove it";

    usage_without_track(option) => "'{option}' has no effect without 'track_usage'",
        "write 'track_usage: true', or remove '{option}'";
    usage_interval_too_short(interval) => "a usage_interval of {interval} is shorter than a second",
        "write 1s or more";
    usage_number_out_of_range(option, number, most) => "'{option}' is {number}",
        "write a number from 1 to {most}";
    usage_buckets_too_long(buckets, interval, span, longest) => "{buckets} buckets of {interval} \
        cover {span}, which is longer than {longest}",
        "write a shorter usage_interval, or fewer usage_buckets";
    usage_expiry_too_short(expiry, span, buckets, interval) => "a usage_expiry of {expiry} is \
        shorter than the {span} that {buckets} buckets of {interval} cover",
        "write {span} or more, or fewer usage_buckets";
    usage_expiry_too_long(expiry, longest) => "a usage_expiry of {expiry} is longer than {longest}",
        "write {longest} or less";
}
