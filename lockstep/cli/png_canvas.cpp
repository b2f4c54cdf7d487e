// A PNG picture. The coverage of a pixel follows from its distance to the line, which makes edges
// smooth. Letters are strokes on a grid of 5 × 7 points.
#include <png.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/cli/canvas.h"

namespace lockstep::cli {
namespace {

// The strokes of a letter: pairs of digits are points (x from 0 to 4, y from 0 at the top to 6), a
// bar starts a new stroke.
struct Glyph {
  char letter;
  std::string_view strokes;
};
constexpr Glyph kGlyphs[] = {
    {'A', "06 20 46|14 34"},
    {'B', "06 00 30 41 42 33 03|33 44 45 36 06"},
    {'C', "41 30 10 01 05 16 36 45"},
    {'D', "00 06 26 44 42 20 00"},
    {'E', "40 00 06 46|03 33"},
    {'F', "40 00 06|03 33"},
    {'G', "41 30 10 01 05 16 36 45 43 23"},
    {'H', "00 06|40 46|03 43"},
    {'I', "10 30|20 26|16 36"},
    {'J', "40 45 36 16 05"},
    {'K', "00 06|40 03 46"},
    {'L', "00 06 46"},
    {'M', "06 00 23 40 46"},
    {'N', "06 00 46 40"},
    {'O', "10 30 41 45 36 16 05 01 10"},
    {'P', "06 00 30 41 42 33 03"},
    {'Q', "10 30 41 45 36 16 05 01 10|24 46"},
    {'R', "06 00 30 41 42 33 03|23 46"},
    {'S', "41 30 10 01 02 13 33 44 45 36 16 05"},
    {'T', "00 40|20 26"},
    {'U', "00 05 16 36 45 40"},
    {'V', "00 26 40"},
    {'W', "00 16 22 36 40"},
    {'X', "00 46|40 06"},
    {'Y', "00 23 40|23 26"},
    {'Z', "00 40 06 46"},
    {'0', "10 30 41 45 36 16 05 01 10"},
    {'1', "11 20 26|16 36"},
    {'2', "01 10 30 41 42 06 46"},
    {'3', "01 10 30 41 42 33 13|33 44 45 36 16 05"},
    {'4', "36 30 04 44"},
    {'5', "40 00 03 33 44 45 36 06"},
    {'6', "30 10 01 05 16 36 45 44 33 13 04"},
    {'7', "00 40 16"},
    {'8', "10 30 41 42 33 13 02 01 10|13 04 05 16 36 45 44 33"},
    {'9', "16 36 45 41 30 10 01 02 13 43"},
    {'.', "15 25 26 16 15"},
    {',', "25 17"},
    {':', "11 21 22 12 11|15 25 26 16 15"},
    {'-', "03 43"},
    {'+', "03 43|21 25"},
    {'_', "06 46"},
    {'/', "06 40"},
    {'=', "02 42|04 44"},
    {'(', "30 12 14 36"},
    {')', "10 32 34 16"},
    {'%', "06 40|00 11|35 46"},
};
// Drawn for letters that are not in the table: a box.
constexpr std::string_view kUnknown = "00 40 46 06 00";
constexpr double kGridWidth = 4;
constexpr double kGridHeight = 6;
constexpr double kAdvance = 6;  // from one letter to the next, on the grid

std::string_view strokes_of(char c) {
  const char letter = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (letter == ' ') return "";
  const auto* found = std::ranges::find(kGlyphs, letter, &Glyph::letter);
  return found == std::end(kGlyphs) ? kUnknown : found->strokes;
}

double distance_to_segment(Point p, Point a, Point b) {
  const double dx = b.x - a.x;
  const double dy = b.y - a.y;
  const double length = dx * dx + dy * dy;
  const double along =
      length == 0 ? 0.0 : std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / length, 0.0, 1.0);
  return std::hypot(p.x - a.x - along * dx, p.y - a.y - along * dy);
}

void append(png_structp png, png_bytep bytes, png_size_t size) {
  static_cast<std::string*>(png_get_io_ptr(png))->append(reinterpret_cast<char*>(bytes), size);
}

class PngCanvas final : public Canvas {
 public:
  PngCanvas(int width, int height)
      : width_(width),
        height_(height),
        pixels_(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3, 255) {}

  void line(const std::vector<Point>& points, Colour colour, double width) override {
    for (std::size_t i = 0; i + 1 < points.size(); ++i) {
      segment(points[i], points[i + 1], colour, width / 2);
    }
  }
  void disc(Point centre, double radius, Colour colour) override {
    segment(centre, centre, colour, radius);
  }
  void text(Point at, const std::string& text, double size, Anchor anchor, Colour colour) override {
    const double unit = size / kGridHeight;
    const double width =
        std::max(0.0, static_cast<double>(text.size()) * kAdvance - (kAdvance - kGridWidth)) * unit;
    const double shift = anchor == Anchor::Left ? 0.0 : anchor == Anchor::Middle ? 0.5 : 1.0;
    Point place{at.x - shift * width, at.y - size};
    for (const char c : text) {
      letter(place, strokes_of(c), unit, colour);
      place.x += kAdvance * unit;
    }
  }
  std::string encoded() const override;

 private:
  void letter(Point place, std::string_view strokes, double unit, Colour colour) {
    std::vector<Point> points;
    for (std::size_t i = 0; i < strokes.size();) {
      if (strokes[i] == '|') {
        line(points, colour, kStroke);
        points.clear();
        ++i;
      } else if (strokes[i] == ' ') {
        ++i;
      } else {
        points.push_back(
            {place.x + (strokes[i] - '0') * unit, place.y + (strokes[i + 1] - '0') * unit});
        i += 2;
      }
    }
    line(points, colour, kStroke);
  }

  void segment(Point a, Point b, Colour colour, double radius) {
    const auto first = [](double v) { return static_cast<int>(std::floor(v)) - 1; };
    const int left = std::max(0, first(std::min(a.x, b.x) - radius));
    const int right = std::min(width_ - 1, first(std::max(a.x, b.x) + radius) + 3);
    const int top = std::max(0, first(std::min(a.y, b.y) - radius));
    const int bottom = std::min(height_ - 1, first(std::max(a.y, b.y) + radius) + 3);
    for (int y = top; y <= bottom; ++y) {
      for (int x = left; x <= right; ++x) {
        const double away = distance_to_segment({x + 0.5, y + 0.5}, a, b);
        blend(x, y, colour, std::clamp(radius + 0.5 - away, 0.0, 1.0));
      }
    }
  }

  void blend(int x, int y, Colour colour, double cover) {
    auto* pixel = &pixels_[3 * (static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) +
                                static_cast<std::size_t>(x))];
    for (std::size_t c = 0; c < 3; ++c) {
      pixel[c] = static_cast<std::uint8_t>(std::lround(pixel[c] + cover * (colour[c] - pixel[c])));
    }
  }

  static constexpr double kStroke = 1.3;  // line width of letters

  int width_;
  int height_;
  std::vector<std::uint8_t> pixels_;
};

std::string PngCanvas::encoded() const {
  std::string bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  if (info == nullptr || setjmp(png_jmpbuf(png)) != 0) {
    png_destroy_write_struct(&png, &info);
    fail<InternalError>("[png] libpng could not write a picture of {} × {}", width_, height_);
  }
  png_set_write_fn(png, &bytes, append, nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width_), static_cast<png_uint_32>(height_), 8,
               PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  for (int y = 0; y < height_; ++y) {
    png_write_row(
        png, pixels_.data() + 3 * static_cast<std::size_t>(y) * static_cast<std::size_t>(width_));
  }
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

}  // namespace

std::unique_ptr<Canvas> png_canvas(int width, int height) {
  return std::make_unique<PngCanvas>(width, height);
}

}  // namespace lockstep::cli
