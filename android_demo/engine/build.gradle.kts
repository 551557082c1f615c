// The engine is a library for any JVM. Where there is no Gradle, pom.xml builds and tests it.
plugins {
    alias(libs.plugins.kotlin.jvm)
    alias(libs.plugins.kotlin.serialization)
}

java {
    sourceCompatibility = JavaVersion.VERSION_17
    targetCompatibility = JavaVersion.VERSION_17
}

kotlin {
    compilerOptions {
        jvmTarget = org.jetbrains.kotlin.gradle.dsl.JvmTarget.JVM_17
    }
}

dependencies {
    api(libs.coroutines.core)
    implementation(libs.serialization.json)
    implementation(libs.flatbuffers)
    // On Android :engine-android brings them, with native libraries for phones.
    compileOnly(libs.onnxruntime)
    compileOnly(libs.tokenizers)
}
