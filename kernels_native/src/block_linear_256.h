// What block_linear_rows.h asks for, as far as the kernels for vectors of 256 bits have it in
// common. Included in each one's namespace, after its definition of OMNIDRAFT_TARGET, which must
// hold AVX2, FMA and F16C. No include guard: this is no interface.

constexpr std::size_t kLanes = 8;
constexpr std::size_t kMostRows = 4;
using Floats = __m256;
using Codes = __m256i;
using Products = __m256i;

OMNIDRAFT_TARGET inline Floats zero_floats() { return _mm256_setzero_ps(); }
OMNIDRAFT_TARGET inline Products zero_products() { return _mm256_setzero_si256(); }
OMNIDRAFT_TARGET inline Codes load_codes(const std::uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
OMNIDRAFT_TARGET inline Codes lower(Codes codes) {
  return _mm256_and_si256(codes, _mm256_set1_epi32(0x0f0f0f0f));
}
OMNIDRAFT_TARGET inline Codes upper(Codes codes) { return lower(_mm256_srli_epi32(codes, 4)); }
OMNIDRAFT_TARGET inline Floats floats_of_halves(const std::uint8_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
OMNIDRAFT_TARGET inline Floats floats_of_integers(const std::uint8_t* at) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
}
OMNIDRAFT_TARGET inline Floats floats_at(const float* at) { return _mm256_loadu_ps(at); }
OMNIDRAFT_TARGET inline Floats all_floats(float value) { return _mm256_set1_ps(value); }
OMNIDRAFT_TARGET inline Floats multiply_floats(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
OMNIDRAFT_TARGET inline Floats fused(Floats a, Floats b, Floats c) {
  return _mm256_fmadd_ps(a, b, c);
}
OMNIDRAFT_TARGET inline void store_floats(Floats floats, float* to) {
  _mm256_storeu_ps(to, floats);
}
