#include "tools/quire/bench_svg.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace quire::client {
namespace {

constexpr double kWidth = 960;
constexpr double kHeader = 70;
constexpr double kChartHeight = 190;     // height of a percentile chart with labels
constexpr double kTimelineHeight = 210;  // height of a timeline with labels
constexpr const char* kColors[] = {"#1d4ed8", "#c2410c"};
constexpr const char* kAxisColor = "#6b7280";
constexpr const char* kFailureColor = "#dc2626";
constexpr std::size_t kBuckets = 200;  // time intervals of a timeline

struct Box {
  double left, top, width, height;
  double right() const { return left + width; }
  double bottom() const { return top + height; }
};

struct Point {
  double x, y;
};

// Collects the elements of the image.
class Canvas {
 public:
  void Text(Point at, absl::string_view text, absl::string_view anchor = "start",
            absl::string_view color = "#111827", int size = 12) {
    absl::StrAppendFormat(
        &body_,
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\" "
        "font-size=\"%d\">%s</text>\n",
        at.x, at.y, anchor, color, size,
        absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}}));
  }
  void Line(Point from, Point to, absl::string_view color, double width = 1) {
    absl::StrAppendFormat(&body_,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                          "stroke-width=\"%.1f\"/>\n",
                          from.x, from.y, to.x, to.y, color, width);
  }
  // Draws connected lines, or the filled area if `fill` is not "none".
  void Path(const std::vector<Point>& points, absl::string_view stroke, absl::string_view fill) {
    std::string path;
    for (const Point& point : points) {
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : " L", point.x, point.y);
    }
    absl::StrAppendFormat(&body_,
                          "<path d=\"%s\" fill=\"%s\" fill-opacity=\"0.25\" stroke=\"%s\" "
                          "stroke-width=\"1.5\"/>\n",
                          path, fill, stroke);
  }
  std::string Finish(double height) const {
    return absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
        "font-family=\"sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n"
        "%s</svg>\n",
        kWidth, height, body_);
  }

 private:
  std::string body_;
};

// Rounds `value` up to 1, 2 or 5 times a power of ten. Returns 1 for 0.
double RoundUp(double value) {
  if (value <= 0) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= value) return factor * power;
  }
  return 10 * power;
}

// Draws the labels of the y axis from 0 to `top` on the given side of the box. On the left, also
// draws horizontal lines. Returns a function from a value to its y coordinate.
std::function<double(double)> DrawScale(const Box& box, double top, absl::string_view side,
                                        absl::string_view color, Canvas* canvas) {
  const auto y = [box, top](double value) { return box.bottom() - box.height * value / top; };
  for (int i = 0; i <= 4; ++i) {
    const double value = top * i / 4;
    if (side == "left") canvas->Line({box.left, y(value)}, {box.right(), y(value)}, "#e5e7eb");
    const double x = side == "left" ? box.left - 4 : box.right() + 4;
    canvas->Text({x, y(value) + 4}, absl::StrFormat("%g", value), side == "left" ? "end" : "start",
                 color, 10);
  }
  return y;
}

struct Latency {
  const char* name;
  std::vector<double> LatencySeconds::*values;
};
constexpr Latency kLatencies[] = {{"time to first token", &LatencySeconds::ttft},
                                  {"time per output token", &LatencySeconds::tpot},
                                  {"time between messages", &LatencySeconds::itl},
                                  {"whole request", &LatencySeconds::e2e}};

// Returns the values of all completed requests of a server in milliseconds, ascending.
std::vector<double> Collect(const std::vector<BenchRun>& runs, const Latency& latency) {
  LatencySeconds seconds;
  for (const BenchRun& run : runs) {
    for (const RequestSample& sample : run.samples) {
      if (sample.ok && !sample.cancelled) AddLatencies(sample, &seconds);
    }
  }
  std::vector<double> values = std::move(seconds.*latency.values);
  for (double& value : values) value *= 1e3;
  std::sort(values.begin(), values.end());
  return values;
}

// Percentiles are spaced by -log10(1 - p), so that p90 to p99 is as wide as p0 to p90.
constexpr double kMaxNines = 3;  // up to p99.9

double NinesOf(double percentile) {
  return -std::log10(1 - percentile / 100);
}

void DrawPercentiles(const std::vector<std::vector<BenchRun>>& subjects, const Latency& latency,
                     const Box& box, Canvas* canvas) {
  std::vector<std::vector<double>> values;
  double highest = 0;
  for (const std::vector<BenchRun>& runs : subjects) {
    values.push_back(Collect(runs, latency));
    if (!values.back().empty()) highest = std::max(highest, Percentile(values.back(), 99.9));
  }
  canvas->Text({box.left, box.top - 8}, absl::StrCat(latency.name, ", ms"));
  if (highest == 0) {
    canvas->Text({box.left + box.width / 2, box.top + box.height / 2}, "no values", "middle",
                 kAxisColor);
    return;
  }
  const auto y = DrawScale(box, RoundUp(highest), "left", kAxisColor, canvas);
  const auto x = [&box](double nines) { return box.left + box.width * nines / kMaxNines; };
  for (const auto& [label, percentile] :
       {std::pair("0", 0.0), std::pair("p50", 50.0), std::pair("p90", 90.0), std::pair("p99", 99.0),
        std::pair("p99.9", 99.9)}) {
    canvas->Text({x(NinesOf(percentile)), box.bottom() + 14}, label, "middle", kAxisColor, 10);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].empty()) continue;
    std::vector<Point> points;
    for (double nines = 0; nines <= kMaxNines + 1e-9; nines += kMaxNines / 60) {
      points.push_back({x(nines), y(Percentile(values[i], 100 * (1 - std::pow(10, -nines))))});
    }
    canvas->Path(points, kColors[i % 2], "none");
  }
}

// Activity of a server over time, with its runs one after the other.
struct Timeline {
  double seconds = 0;
  std::vector<double> tokens = std::vector<double>(kBuckets);  // output tokens per bucket
  std::vector<std::pair<double, int>> changes;                 // time, +1 or -1 request in flight
  std::vector<double> failures;                                // times of failed requests
};

// Adds the tokens of one request, whose first message arrived at `first`.
void AddTokens(const RequestSample& sample, double first, Timeline* timeline) {
  const auto add = [timeline](double time, std::int64_t count) {
    const double bucket = timeline->seconds > 0 ? time / timeline->seconds * kBuckets : 0;
    timeline->tokens[std::min(kBuckets - 1, static_cast<std::size_t>(std::max(0.0, bucket)))] +=
        static_cast<double>(count);
  };
  std::int64_t later = 0;
  for (const std::int64_t count : sample.itl_tokens) later += count;
  if (sample.messages > 0) add(first, sample.output_tokens - later);
  double time = first;
  for (std::size_t i = 0; i < sample.itl_seconds.size(); ++i) {
    time += sample.itl_seconds[i];
    add(time, i < sample.itl_tokens.size() ? sample.itl_tokens[i] : 1);
  }
}

Timeline MakeTimeline(const std::vector<BenchRun>& runs) {
  Timeline timeline;
  for (const BenchRun& run : runs) timeline.seconds += run.duration_seconds;
  double run_start = 0;
  for (const BenchRun& run : runs) {
    for (const RequestSample& sample : run.samples) {
      const double start = run_start + sample.start_seconds;
      timeline.changes.emplace_back(start, 1);
      timeline.changes.emplace_back(start + sample.e2e_seconds, -1);
      if (!sample.ok && !sample.cancelled) timeline.failures.push_back(start + sample.e2e_seconds);
      AddTokens(sample, start + sample.ttft_seconds, &timeline);
    }
    run_start += run.duration_seconds;
  }
  std::sort(timeline.changes.begin(), timeline.changes.end());
  return timeline;
}

void DrawTimeline(const std::vector<BenchRun>& runs, const char* color, const Box& box,
                  Canvas* canvas) {
  const Timeline timeline = MakeTimeline(runs);
  const double seconds = std::max(timeline.seconds, 1e-9);
  const double bucket_seconds = seconds / kBuckets;
  double max_in_flight = 0, in_flight = 0;
  for (const auto& [time, change] : timeline.changes) {
    in_flight += change;
    max_in_flight = std::max(max_in_flight, in_flight);
  }
  const double max_tokens = *std::max_element(timeline.tokens.begin(), timeline.tokens.end());
  canvas->Text({box.left, box.top - 8}, absl::StrCat(runs.front().backend, ": output tokens/s"),
               "start", color);
  canvas->Text({box.right(), box.top - 8}, "requests in flight", "end");
  const auto left = DrawScale(box, RoundUp(max_tokens / bucket_seconds), "left", color, canvas);
  // The scale has four divisions, each a whole number of requests.
  const double top = 4 * std::ceil(std::max(max_in_flight, 1.0) / 4);
  const auto right = DrawScale(box, top, "right", "#111827", canvas);
  const auto x = [&](double time) {
    return box.left + box.width * std::min(time, seconds) / seconds;
  };
  const double tick = RoundUp(seconds / 8);
  for (int i = 0; i * tick <= seconds; ++i) {
    canvas->Text({x(i * tick), box.bottom() + 14}, absl::StrFormat("%g s", i * tick), "middle",
                 kAxisColor, 10);
  }
  std::vector<Point> area = {{box.left, box.bottom()}};
  for (std::size_t i = 0; i < kBuckets; ++i) {
    const double height = left(timeline.tokens[i] / bucket_seconds);
    area.push_back({x(static_cast<double>(i) * bucket_seconds), height});
    area.push_back({x(static_cast<double>(i + 1) * bucket_seconds), height});
  }
  area.push_back({box.right(), box.bottom()});
  canvas->Path(area, "none", color);
  std::vector<Point> steps = {{box.left, right(0)}};
  in_flight = 0;
  for (const auto& [time, change] : timeline.changes) {
    steps.push_back({x(time), right(in_flight)});
    in_flight += change;
    steps.push_back({x(time), right(in_flight)});
  }
  canvas->Path(steps, "#111827", "none");
  for (const double time : timeline.failures) {
    canvas->Line({x(time), box.top}, {x(time), box.top + 8}, kFailureColor, 2);
  }
}

void DrawHeader(const std::vector<std::vector<BenchRun>>& subjects, Canvas* canvas) {
  double x = 40;
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    std::int64_t completed = 0, failed = 0, cancelled = 0;
    for (const BenchRun& run : subjects[i]) {
      for (const RequestSample& sample : run.samples) {
        (sample.cancelled ? cancelled : sample.ok ? completed : failed) += 1;
      }
    }
    const BenchRun& run = subjects[i].front();
    canvas->Text({x, 22}, absl::StrCat(run.backend, ", model ", run.model_id), "start",
                 kColors[i % 2], 14);
    std::string counts = absl::StrCat(completed, " completed, ", failed, " failed");
    if (cancelled > 0) absl::StrAppend(&counts, ", ", cancelled, " cancelled");
    canvas->Text({x, 40}, counts, "start", failed > 0 ? kFailureColor : kAxisColor);
    x += kWidth / 2;
  }
}

}  // namespace

std::string BenchSvg(const std::vector<std::vector<BenchRun>>& subjects) {
  Canvas canvas;
  DrawHeader(subjects, &canvas);
  const double column = kWidth / static_cast<double>(std::size(kLatencies));
  for (std::size_t i = 0; i < std::size(kLatencies); ++i) {
    const Box box{static_cast<double>(i) * column + 46, kHeader + 10, column - 66,
                  kChartHeight - 50};
    DrawPercentiles(subjects, kLatencies[i], box, &canvas);
  }
  double top = kHeader + kChartHeight;
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    const Box box{46, top + 20, kWidth - 46 - 50, kTimelineHeight - 60};
    DrawTimeline(subjects[i], kColors[i % 2], box, &canvas);
    top += kTimelineHeight;
  }
  return canvas.Finish(top);
}

}  // namespace quire::client
